// Streams: sorted sparse vectors, places (strictly ascending) and values. Cut among owners, summed,
// put in place, compared. Nothing is checked here; gradwire/kernels/streams.py does.
#pragma once

#include <vector>

#include "entries.hpp"
#include "kernels.hpp"

namespace gradwire {

inline constexpr unsigned chunk_shift = 4;  // owners are dealt chunks of 16 elements

struct Stream {
    const std::int32_t* place;
    const void* value;
    std::size_t count;
    Float type;
};

inline constexpr std::size_t mark_span = 16;     // elements to a mark
inline constexpr std::size_t wide_span = 65536;  // fp32 elements: 256 KiB of second-level cache

// A tile of a sum of few entries, with marks where they are. Before and after each use all is
// zero, but for the spare sums.
struct Marked {
    alignas(64) float sum[wide_span + spare_sums];
    alignas(64) std::uint8_t marks[wide_span / mark_span];
    std::uint32_t where[wide_span / mark_span + 16];  // of any content
};

// This thread's. Throws std::bad_alloc.
Marked& marked_tile();

// Rows that lie anywhere, run after run: run u ends before row end[u].
struct Runs {
    const void* const* row;
    const std::int64_t* end;
    std::size_t count;
};

// Chunks of 16 elements, dealt to owners in rounds. Each round begins with an owner drawn from its
// number, and goes on to the next: so an owner's chunk r is one of round r, and nobody has a table.
//
//     round   0        1        2        3          of 3 owners
//     chunk   0  1  2  3  4  5  6  7  8  9  10
//     owner   2  0  1  1  2  0  2  0  1  0  1
struct Deal {
    std::uint32_t owners;  // 1 to 65,536
    std::uint32_t seed;
};

// What is written once per instruction set, in streams.inl.
struct Streams {
    const Passes* passes;
    const Sparse* sparse;
    // The sum of the payloads over n elements, as `accumulate` takes it, without the elements
    // where the fp32 sum is zero. Returns how many are left. Moves the payloads' `next`.
    std::size_t (*merge)(SparsePayload* payloads, std::size_t count, std::size_t n, float divisor,
                         Float type, std::int32_t* place, void* value, Marked& tile);
    // The entries owner after owner, in their order, with places among the owner's elements.
    // Returns the counts by owner. Throws std::bad_alloc.
    std::vector<std::size_t> (*split)(Stream whole, Deal deal, std::int32_t* place, void* value);
    // Places among an owner's elements as places in the whole.
    void (*flat_places)(const std::int32_t* place, std::size_t count, std::uint32_t owner,
                        Deal deal, std::int32_t* out);
    // Each run's rows, of `width` elements, summed in order, in fp32, from zero, and divided: one
    // row of `out` after the other.
    void (*sum_runs)(Float type, Runs runs, std::size_t width, float divisor, Float out_type,
                     void* out);
};

extern const Streams plain_streams;
#ifdef GRADWIRE_X86
extern const Streams avx2_streams;
extern const Streams avx512_streams;
#endif

// out[place] = value.
void put_in_place(Stream stream, Float type, void* out);

// The union, shared places added, of which the k of largest magnitude are kept, ties to the lower
// place, by ascending place. NaN is the largest, and the same NaN whatever it was. Returns how
// many. Throws std::bad_alloc.
std::size_t top_of_two(const Streams& set, Stream a, Stream b, std::size_t k,
                       std::int32_t* place, Float type, void* value);

// out[j] = 1 if place[j] is among the others, else 0. Both ascend.
void contained(const std::int32_t* place, std::size_t count, const std::int32_t* among,
               std::size_t others, std::uint8_t* out);

}  // namespace gradwire
