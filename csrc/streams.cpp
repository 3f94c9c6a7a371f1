#include "streams.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "half.hpp"
#include "ranks.hpp"
#include "selection.hpp"

namespace gradwire {
namespace {

// -- place ---------------------------------------------------------------------------------------

template <class From, class To>
void put(const From& from, To* to) {
    if constexpr (std::is_same_v<From, To>) {
        *to = from;
    } else {
        narrow(widen(from), to);
    }
}

// -- union ---------------------------------------------------------------------------------------

constexpr std::uint32_t absent = 0x80000000u;  // -0: adding it changes no value, not even -0
constexpr std::uint32_t any_nan = 0x7fc00000u;

struct Workspace {
    Buffer bits, index, first, second, kept;
};

Workspace& workspace() {
    thread_local Workspace own;
    return own;
}

std::uint32_t sum_of(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t bits = bits_of(float_of(a) + float_of(b));
    return magnitude(bits) > infinity_bits ? any_nan : bits;
}

struct Entries {
    const std::int32_t* place;
    const std::uint32_t* bits;
    std::size_t count;
};

Entries widened(const Passes& passes, Stream s, Buffer& held) {
    if (s.type == Float::fp32) {
        return {s.place, static_cast<const std::uint32_t*>(s.value), s.count};
    }
    std::uint32_t* const bits = held.at_least(s.count);
    passes.cast(s.type, Float::fp32, s.value, bits, s.count, false);
    return {s.place, bits, s.count};
}

std::size_t unite(Entries a, Entries b, std::uint32_t* index, std::uint32_t* bits) {
    std::size_t i = 0, j = 0, found = 0;
    while (i < a.count && j < b.count) {
        const std::int32_t p = a.place[i], q = b.place[j];
        const bool left = p <= q, right = q <= p;
        bits[found] = sum_of(left ? a.bits[i] : absent, right ? b.bits[j] : absent);
        index[found++] = static_cast<std::uint32_t>(left ? p : q);
        i += left;
        j += right;
    }
    const auto take_rest = [&](const Entries& from, std::size_t at) {
        for (; at < from.count; ++at) {
            bits[found] = sum_of(from.bits[at], absent);
            index[found++] = static_cast<std::uint32_t>(from.place[at]);
        }
    };
    take_rest(a, i);
    take_rest(b, j);
    return found;
}

}  // namespace

Marked& marked_tile() {
    thread_local const std::unique_ptr<Marked> own = std::make_unique<Marked>();
    return *own;
}

void put_in_place(Stream stream, Float type, void* out) {
    with_type(stream.type, stream.value, [&](const auto* value) {
        with_type(type, out, [&](auto* target) {
            for (std::size_t j = 0; j < stream.count; ++j) put(value[j], target + stream.place[j]);
        });
    });
}

std::size_t top_of_two(const Streams& set, Stream a, Stream b, std::size_t k,
                       std::int32_t* place, Float type, void* value) {
    Workspace& own = workspace();
    const std::size_t room = a.count + b.count + candidate_slack;
    std::uint32_t* const bits = own.bits.at_least(room);
    std::uint32_t* const index = own.index.at_least(room);
    const std::size_t count =
        unite(widened(*set.passes, a, own.first), widened(*set.passes, b, own.second), index, bits);
    k = std::min(k, count);
    if (k == 0) return 0;
    const bool direct = type == Float::fp32;
    auto* const kept = static_cast<float*>(direct ? value : own.kept.at_least(k));
    if (k == count) {
        std::memcpy(place, index, k * sizeof *place);
        std::memcpy(kept, bits, k * sizeof *kept);
    } else {
        keep_top(*set.passes, *set.sparse, bits, index, count, {place, kept, k, 0.0f});
    }
    if (!direct) set.passes->cast(Float::fp32, type, kept, value, k, false);
    return k;
}

void contained(const std::int32_t* place, std::size_t count, const std::int32_t* among,
               std::size_t others, std::uint8_t* out) {
    std::size_t i = 0, j = 0;
    while (i < count && j < others) {
        const std::int32_t p = place[i], q = among[j];
        out[i] = p == q;
        i += p <= q;
        j += q < p;
    }
    std::fill(out + i, out + count, std::uint8_t{0});
}

}  // namespace gradwire
