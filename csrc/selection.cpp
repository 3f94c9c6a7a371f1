#include "selection.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "half.hpp"
#include "ranks.hpp"

namespace gradwire {
namespace {

std::atomic<std::uint64_t> fallback_count{0};

constexpr std::uint32_t smallest_bits =
    1;  // of the smallest positive float: every non-zero is a candidate

// Not inlined: loops would ask for the thread's address of it again and again.
[[gnu::noinline]] Scratch& scratch() {
    thread_local Scratch own;
    return own;
}

// Returns the bits of an element; a non-finite one counts as zero.
template <class T>
std::uint32_t finite_bits(const T* x, std::size_t i) {
    const std::uint32_t bits = bits_of(widen(x[i]));
    return magnitude(bits) < infinity_bits ? bits : 0;
}

// Keeps the rank largest candidates, in index order, ties to the lower index. `to` may be `from`
// itself.
void keep_largest(const Candidates& from, std::size_t rank, std::uint32_t least,
                  std::uint32_t* bits, std::uint32_t* index) {
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for (std::size_t i = 0; i < from.count; ++i) {
        above += magnitude(from.bits[i]) > least;
        equal += magnitude(from.bits[i]) == least;
    }
    std::size_t ties = rank - above;
    std::size_t next = 0;
    if (ties == equal) {
        for (std::size_t i = 0; next < rank; ++i) {
            index[next] = from.index[i];
            bits[next] = from.bits[i];
            next += magnitude(bits[next]) >= least;
        }
        return;
    }
    for (std::size_t i = 0; next < rank; ++i) {
        const std::uint32_t now = from.bits[i];
        const std::size_t tie = (magnitude(now) == least) & (ties > 0);
        index[next] = from.index[i];
        bits[next] = now;
        next += (magnitude(now) > least) | tie;
        ties -= tie;
    }
}

void make_room(Candidates& found) {
    const std::uint32_t least = Ranks(found.bits, found.count, scratch()).largest(found.keep);
    keep_largest(found, found.keep, least, found.bits, found.index);
    found.count = found.keep;
    found.threshold = least;
}

// The number of candidates to aim at: 2k, because residuals pile up just under the k-th, and those
// not sent now fill the next step. Slightly more for small k, where chance matters more.
std::size_t aim(std::size_t n, std::size_t k) { return std::min(n, 2 * k + 32); }

bool is_known(float hint) { return hint > 0.0f && std::isfinite(hint); }

std::uint32_t threshold_of(float hint) { return is_known(hint) ? bits_of(hint) : smallest_bits; }

Candidates fresh(Scratch& own, std::size_t n, std::size_t k, std::uint32_t threshold) {
    const std::size_t capacity = std::min(n, 8 * k + 4096);
    const std::size_t size = capacity + candidate_slack;
    return {own.bits.at_least(size),
            own.index.at_least(size),
            0,
            capacity,
            threshold,
            aim(n, k),
            make_room};
}

// Lowers the hint after too few candidates, by the rate seen between the k-th and the last.
float lower_hint(std::uint32_t kth, std::uint32_t last, std::size_t k, std::size_t count,
                 std::size_t wanted) {
    const float low = float_of(last);
    if (count <= k || kth == last) return 0.75f * low;
    const double rate = std::log(static_cast<double>(wanted) / static_cast<double>(count)) /
                        std::log(static_cast<double>(count) / static_cast<double>(k));
    const double drop = (static_cast<double>(float_of(kth)) - low) * rate;
    return static_cast<float>(std::max(0.5 * low, low - drop));
}

// Magnitudes: the exact k-th largest; about the wanted-th, or the last; about the smallest.
struct Cut {
    std::uint32_t kth, wanted, smallest;
};

Cut cut_by_ranks(const Candidates& found, std::size_t k, std::size_t wanted, Scratch& own) {
    const Ranks ranks(found.bits, found.count, own);
    const std::size_t rank = std::min(wanted, found.count);
    return {ranks.largest(k), ranks.about_largest(rank), ranks.smallest()};
}

// For many candidates: a sample gives two magnitudes around the k-th; only candidates between them
// are ranked. kth is 0 if the k-th is not between them: a sample may mislead.
Cut cut_by_sample(const Passes& passes, const Sparse& sparse, const Candidates& found,
                  std::size_t k, std::size_t wanted, Scratch& own) {
    constexpr std::size_t size = sample_size;
    constexpr std::size_t margin = 180;  // four times the largest deviation of a rank
    const auto rank_of = [&](std::size_t rank) { return rank * size / found.count; };
    const std::size_t middle = rank_of(k);
    if (found.count < 4 * size || middle <= margin || middle + margin >= size) return {};
    const std::size_t stride = found.count / size;
    for (std::size_t i = 0; i < size; ++i) own.sample[i] = found.bits[i * stride];
    const Ranks ranks(own.sample, size, own);
    const std::uint32_t high = ranks.largest(middle - margin);
    const std::uint32_t low = ranks.largest(middle + margin);
    const Cut rough{0, ranks.about_largest(std::min(size, rank_of(wanted) + 1)), ranks.smallest()};
    const std::size_t above = passes.count(Float::fp32, found.bits, found.count, high);
    std::uint32_t* const band = own.band.at_least(found.count + candidate_slack);
    const std::size_t held =
        sparse.between(found.bits, found.bits, found.count, low, high, band, band);
    if (above >= k || above + held < k) return {};
    return {Ranks(band, held, own).largest(k - above), rough.wanted, rough.smallest};
}

// Writes the k largest, those of `least` and more, in index order; overwrites the candidates.
void take_largest(const Passes& passes, const Sparse& sparse, const Candidates& found,
                  std::uint32_t least, Selection out) {
    auto* const bits = reinterpret_cast<std::uint32_t*>(out.value);
    auto* const index = reinterpret_cast<std::uint32_t*>(out.index);
    if (passes.count(Float::fp32, found.bits, found.count, least) != out.k) {
        return keep_largest(found, out.k, least, bits, index);  // not all ties
    }
    sparse.between(found.bits, found.index, found.count, least, infinity_bits, found.bits,
                   found.index);
    std::copy_n(found.bits, out.k, bits);
    std::copy_n(found.index, out.k, index);
}

// Writes the k largest candidates in index order and returns the next hint. count >= k.
float choose(const Passes& passes, const Sparse& sparse, const Candidates& found, std::size_t n,
             Selection out, Scratch& own) {
    const std::size_t wanted = aim(n, out.k);
    Cut cut = cut_by_sample(passes, sparse, found, out.k, wanted, own);
    if (cut.kth == 0) cut = cut_by_ranks(found, out.k, wanted, own);
    take_largest(passes, sparse, found, cut.kth, out);
    const float hint = found.count >= wanted
                           ? float_of(cut.wanted)
                           : lower_hint(cut.kth, cut.smallest, out.k, found.count, wanted);
    return std::max(hint, float_of(smallest_bits));
}

// Writes all candidates and the first zeros between them, by index. Requires count < k.
template <class T>
float fill_up(const T* x, const Candidates& found, Selection out) {
    std::size_t zeros = out.k - found.count;
    std::size_t seen = 0;
    std::size_t next = 0;
    for (std::uint32_t i = 0; next < out.k; ++i) {
        const bool candidate = seen < found.count && found.index[seen] == i;
        if (!candidate && zeros == 0) {
            i = found.index[seen] - 1;
            continue;
        }
        out.index[next] = static_cast<std::int32_t>(i);
        out.value[next++] = float_of(finite_bits(x, i));
        candidate ? ++seen : --zeros;
    }
    return float_of(smallest_bits);
}

template <class T>
void take_all(const T* x, Selection out) {
    for (std::size_t i = 0; i < out.k; ++i) {
        out.index[i] = static_cast<std::int32_t>(i);
        out.value[i] = float_of(finite_bits(x, i));
    }
}

// Completes a selection after a pass that collected candidates. 0 < k < n. If a hint was too high
// and gave fewer than k, scans x again for all non-zeros; if those are too few, zeros fill up.
Outcome finish(const Passes& passes, const Sparse& sparse, Float type, const void* x, std::size_t n,
               Selection out, Candidates& found, bool finite, Scratch& own) {
    if (found.count < out.k && found.threshold != smallest_bits) {
        fallback_count.fetch_add(1, std::memory_order_relaxed);
        found.count = 0;
        found.threshold = smallest_bits;
        finite &= passes.scan(type, x, n, found);
    }
    const float hint =
        found.count >= out.k
            ? choose(passes, sparse, found, n, out, own)
            : with_type(type, x, [&](const auto* p) { return fill_up(p, found, out); });
    return {hint, finite};
}

// Clears the selected elements. They lie far apart, so they are prefetched well ahead.
void clear_selected(float* u, float* v, bool mask, const Selection& out, float* velocities) {
    constexpr std::size_t ahead = 24;
    for (std::size_t j = 0; j < out.k; ++j) {
        if (j + ahead < out.k) {
            __builtin_prefetch(v + out.index[j + ahead], 1);
            if (u != nullptr) __builtin_prefetch(u + out.index[j + ahead], 1);
        }
        const std::int32_t i = out.index[j];
        if (out.value[j] != 0.0f || magnitude(bits_of(v[i])) < infinity_bits) v[i] = 0.0f;
        if (u == nullptr) continue;
        velocities[j] = u[i];
        if (mask) u[i] = 0.0f;
    }
}

}  // namespace

// Elements not sent are about the threshold or less, so up to this limit inverting the recurrence
// loses little. Above huge_bits it cannot be known whether an element was left alone.
std::uint32_t journal_limit(float hint) {
    return is_known(hint) ? std::min(bits_of(journal_factor * hint), huge_bits) : 0;
}

std::uint64_t fallbacks() { return fallback_count.load(std::memory_order_relaxed); }

Outcome topk(const Passes& passes, const Sparse& sparse, Float type, const void* x, std::size_t n,
             Selection out) {
    if (out.k == 0 || out.k == n) {
        with_type(type, x, [&](const auto* p) { take_all(p, out); });
        return {out.hint, passes.is_finite(type, x, n)};
    }
    Scratch& own = scratch();
    Candidates found = fresh(own, n, out.k, threshold_of(out.hint));
    const bool finite = passes.scan(type, x, n, found);
    return finish(passes, sparse, type, x, n, out, found, finite, own);
}

Outcome update_topk(const Passes& passes, const Sparse& sparse, Float type, const void* gradient,
                    float* u, float* v, std::size_t n, Recurrence how, bool mask, Selection out,
                    float* velocities, Journal* journal) {
    Watch watch{};
    if (journal != nullptr) {
        journal->begin(u, v, n);
        watch = journal->watch(journal_limit(out.hint));
    }
    Scratch& own = scratch();
    const bool trivial = out.k == 0 || out.k == n;
    Candidates found =
        fresh(own, n, trivial ? 0 : out.k, trivial ? infinity_bits : threshold_of(out.hint));
    Outcome outcome{out.hint, passes.update(type, gradient, u, v, n, how, found,
                                            journal != nullptr ? &watch : nullptr)};
    if (trivial) {
        take_all(v, out);
    } else {
        outcome = finish(passes, sparse, Float::fp32, v, n, out, found, outcome.finite, own);
    }
    clear_selected(u, v, mask, out, velocities);
    if (journal != nullptr && journal->failed()) throw std::bad_alloc();
    return outcome;
}

std::pair<std::size_t, bool> reaching(const Passes& passes, Float type, const void* x,
                                      std::size_t n, std::uint32_t threshold, std::size_t room,
                                      std::int32_t* index, float* value) {
    // When the arrays are full, start again, to count the rest; found.keep holds the count so far.
    const auto begin_anew = [](Candidates& found) {
        found.keep += found.count;
        found.count = 0;
    };
    Candidates found{reinterpret_cast<std::uint32_t*>(value),
                     reinterpret_cast<std::uint32_t*>(index),
                     0,
                     room,
                     threshold,
                     0,
                     begin_anew};
    const bool finite = passes.scan(type, x, n, found);
    return {found.keep + found.count, finite};
}

void keep_top(const Passes& passes, const Sparse& sparse, std::uint32_t* bits,
              std::uint32_t* index, std::size_t count, Selection out) {
    Scratch& own = scratch();
    const Candidates all{bits, index, count, count, smallest_bits, out.k, nullptr};
    if (range_of(bits, count).high < infinity_bits) {
        choose(passes, sparse, all, count, out, own);
        return;
    }
    const std::uint32_t least = Ranks(bits, count, own).largest(out.k);
    keep_largest(all, out.k, least, reinterpret_cast<std::uint32_t*>(out.value),
                 reinterpret_cast<std::uint32_t*>(out.index));
}

}  // namespace gradwire
