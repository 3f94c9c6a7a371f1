#include "streams.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "half.hpp"
#include "ranks.hpp"
#include "selection.hpp"

namespace gradwire {
namespace {

// -- split ---------------------------------------------------------------------------------------

// The stream is read in so many parts at once, each with its own counts: what one entry adds to a
// count is not waited for by the next.
constexpr std::size_t parts = 4;

struct Parts {
    std::size_t length;  // of each; what is left over belongs to the last
    std::size_t count;

    std::size_t begin(std::size_t part) const { return part * length; }
    std::size_t end(std::size_t part) const { return part + 1 == parts ? count : begin(part + 1); }
};

// Calls work(part, j) for all entries, the parts in turn.
template <class Work>
void interleaved(Parts shape, Work work) {
    for (std::size_t j = 0; j < shape.length; ++j) {
#pragma GCC unroll 4
        for (std::size_t part = 0; part < parts; ++part) work(part, shape.begin(part) + j);
    }
    for (std::size_t j = parts * shape.length; j < shape.count; ++j) work(parts - 1, j);
}

// Counts by part and owner become first positions; returns the totals by owner.
std::vector<std::size_t> positions(std::vector<std::uint32_t>& counts, std::size_t fields,
                                   std::size_t owners) {
    std::vector<std::size_t> totals(owners);
    std::uint32_t next = 0;
    for (std::size_t owner = 0; owner < fields; ++owner) {
        const std::uint32_t first = next;
        for (std::size_t part = 0; part < parts; ++part) {
            std::uint32_t& here = counts[part * fields + owner];
            next += here;
            here = next - here;
        }
        if (owner < owners) totals[owner] = next - first;
        if (owner >= owners && next != first) return {};
    }
    return totals;
}

template <class Word>
void scatter(Stream whole, Deal deal, Parts shape, std::uint32_t* next, std::int32_t* place,
             Word* value) {
    const auto* const values = static_cast<const Word*>(whole.value);
    const std::size_t fields = std::size_t{1} << deal.bits;
    const auto mask = static_cast<std::uint32_t>(fields - 1);
    interleaved(shape, [&](std::size_t part, std::size_t j) {
        const auto p = static_cast<std::uint32_t>(whole.place[j]);
        const auto entry = static_cast<std::uint32_t>(deal.table[p >> chunk_shift]);
        const std::uint32_t to = next[part * fields + (entry & mask)]++;
        place[to] = static_cast<std::int32_t>((entry >> deal.bits) << chunk_shift | (p & 15u));
        value[to] = values[j];
    });
}

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

constexpr std::uint32_t absent = 0x80000000u;  // -0: adds nothing to any value, -0 included
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

std::vector<std::size_t> split(Stream whole, Deal deal, std::int32_t* place, void* value) {
    const Parts shape{whole.count / parts, whole.count};
    const std::size_t fields = std::size_t{1} << deal.bits;
    const auto mask = static_cast<std::uint32_t>(fields - 1);
    std::vector<std::uint32_t> counts(parts * fields);
    interleaved(shape, [&, counted = counts.data()](std::size_t part, std::size_t j) {
        const auto p = static_cast<std::uint32_t>(whole.place[j]);
        const auto entry = static_cast<std::uint32_t>(deal.table[p >> chunk_shift]);
        ++counted[part * fields + (entry & mask)];
    });
    auto totals = positions(counts, fields, deal.owners);
    if (totals.empty()) return totals;
    if (whole.type == Float::fp32) {
        scatter(whole, deal, shape, counts.data(), place, static_cast<std::uint32_t*>(value));
    } else {
        scatter(whole, deal, shape, counts.data(), place, static_cast<std::uint16_t*>(value));
    }
    return totals;
}

void put_in_place(Stream stream, const std::int32_t* chunks, Float type, void* out) {
    with_type(stream.type, stream.value, [&](const auto* value) {
        with_type(type, out, [&](auto* target) {
            if (chunks == nullptr) {
                for (std::size_t j = 0; j < stream.count; ++j)
                    put(value[j], target + stream.place[j]);
                return;
            }
            for (std::size_t j = 0; j < stream.count; ++j) {
                const auto p = static_cast<std::uint32_t>(stream.place[j]);
                const auto chunk = static_cast<std::uint32_t>(chunks[p >> chunk_shift]);
                put(value[j], target + (chunk << chunk_shift | (p & 15u)));
            }
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
