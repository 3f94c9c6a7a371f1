// Exact top-k by magnitude: ties go to the lower index, zeros of both signs tie, non-finite
// elements count as zeros.
#pragma once

#include <utility>

#include "entries.hpp"
#include "journal.hpp"
#include "kernels.hpp"

namespace gradwire {

struct Selection {
    std::int32_t* index;  // k, ascending
    float* value;         // k
    std::size_t k;
    float hint;  // candidate threshold; 0: unknown. Changes the time only.
};

struct Outcome {
    float hint;  // for the next step on similar data
    bool finite;
};

// How many times a given hint was of no use, since the process started.
std::uint64_t fallbacks();

Outcome topk(const Passes& passes, const Sparse& sparse, Float type, const void* x, std::size_t n,
             Selection out);

// Advances u and v by the gradient, selects among |v|, and clears the selected elements of v, and
// of u if mask. velocities (k) receives the selected u's; u and velocities are null in
// Mode::feedback. journal, which may be null, receives the old u and v of every block in which a
// scaled gradient is journal_factor times the hint or more, or huge; of all blocks if the hint is
// unknown. Throws std::bad_alloc, with u and v updated, if there is no memory for the journal.
Outcome update_topk(const Passes& passes, const Sparse& sparse, Float type, const void* gradient,
                    float* u, float* v, std::size_t n, Recurrence how, bool mask, Selection out,
                    float* velocities, Journal* journal);

inline constexpr float journal_factor = 16.0f;

// Writes all finite elements whose magnitude reaches the threshold, by ascending index. Returns
// their number, and whether x is finite. The arrays hold candidate_slack more than `room`; if there
// are more than room elements, the arrays' content is undefined.
std::pair<std::size_t, bool> reaching(const Passes& passes, Float type, const void* x,
                                      std::size_t n, std::uint32_t threshold, std::size_t room,
                                      std::int32_t* index, float* value);

// Writes the k entries of largest magnitude among `count` > k > 0, by ascending index; inf and NaN
// are large. Overwrites the entries, whose arrays hold candidate_slack more.
void keep_top(const Passes& passes, const Sparse& sparse, std::uint32_t* bits,
              std::uint32_t* index, std::size_t count, Selection out);

// The magnitude bits from which on an update is announced to a journal, given the hint from the
// last update.
std::uint32_t journal_limit(float hint);

}  // namespace gradwire
