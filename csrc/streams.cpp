#include "streams.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>

#include "half.hpp"
#include "ranks.hpp"
#include "selection.hpp"

namespace gradwire {
namespace {

// -- split ---------------------------------------------------------------------------------------

// Counted in turn, so that a count is not waited for by the next entry of the same owner.
constexpr std::size_t lanes = 4;

struct Dealer {
    const std::int32_t* place;
    Deal deal;

    std::uint32_t mask() const { return (1u << deal.bits) - 1; }
    std::uint32_t entry(std::size_t j) const {
        return static_cast<std::uint32_t>(
            deal.table[static_cast<std::uint32_t>(place[j]) >> chunk_shift]);
    }
    std::int32_t local(std::size_t j, std::uint32_t entry) const {
        const std::uint32_t inside = static_cast<std::uint32_t>(place[j]) & 15u;
        return static_cast<std::int32_t>((entry >> deal.bits) << chunk_shift | inside);
    }
};

// How many entries each number of an owner has, below 1 << bits.
std::vector<std::uint32_t> count_owners(Dealer dealer, std::size_t k) {
    const std::size_t fields = std::size_t{1} << dealer.deal.bits;
    const std::uint32_t mask = dealer.mask();
    std::vector<std::uint32_t> counts(lanes * fields);
    std::uint32_t* const count = counts.data();
    std::size_t j = 0;
    for (; j + lanes <= k; j += lanes) {
#pragma GCC unroll 4
        for (std::size_t lane = 0; lane < lanes; ++lane)
            ++count[lane * fields + (dealer.entry(j + lane) & mask)];
    }
    for (; j < k; ++j) ++count[dealer.entry(j) & mask];
    for (std::size_t i = fields; i < lanes * fields; ++i) count[i % fields] += count[i];
    counts.resize(fields);
    return counts;
}

template <class Word>
void scatter(Dealer dealer, const Word* value, std::size_t k, std::uint32_t* next,
             std::int32_t* place_out, Word* value_out) {
    const std::uint32_t mask = dealer.mask();
#pragma GCC unroll 4
    for (std::size_t j = 0; j < k; ++j) {
        const std::uint32_t entry = dealer.entry(j);
        const std::uint32_t to = next[entry & mask]++;
        place_out[to] = dealer.local(j, entry);
        value_out[to] = value[j];
    }
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

Marked& marked_tile() {
    thread_local const std::unique_ptr<Marked> own = std::make_unique<Marked>();
    return *own;
}

std::vector<std::size_t> split(Stream whole, Deal deal, std::int32_t* place, void* value) {
    const Dealer dealer{whole.place, deal};
    std::vector<std::uint32_t> next = count_owners(dealer, whole.count);
    const std::vector<std::size_t> totals(next.begin(), next.begin() + deal.owners);
    if (std::any_of(next.begin() + deal.owners, next.end(), [](auto n) { return n > 0; })) {
        return {};
    }
    std::exclusive_scan(next.begin(), next.end(), next.begin(), 0u);
    const auto move = [&](auto* to) {
        using Word = std::remove_pointer_t<decltype(to)>;
        const auto* const from = static_cast<const Word*>(whole.value);
        scatter(dealer, from, whole.count, next.data(), place, to);
    };
    if (whole.type == Float::fp32) {
        move(static_cast<std::uint32_t*>(value));
    } else {
        move(static_cast<std::uint16_t*>(value));
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
