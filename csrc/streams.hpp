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

// A tile of a sum of few entries, with marks where they are. All zeros before and after each use.
struct Marked {
    alignas(64) float sum[wide_span];
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

// What is written once per instruction set, in streams.inl.
struct Streams {
    const Passes* passes;
    const Sparse* sparse;
    // The sum of the payloads over n elements, as `accumulate` takes it, without the elements
    // where the fp32 sum is zero. Returns how many are left. Moves the payloads' `next`.
    std::size_t (*merge)(SparsePayload* payloads, std::size_t count, std::size_t n, float divisor,
                         Float type, std::int32_t* place, void* value, Marked& tile);
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

// For each chunk its owner, in the lowest bits, and its number among the owner's.
struct Deal {
    const std::int32_t* table;
    unsigned bits;
    std::size_t owners;
};

// The entries owner after owner, in their order, with places in the owner's chunks. Returns the
// counts by owner; none, with nothing written, if an entry belongs to nobody.
std::vector<std::size_t> split(Stream whole, Deal deal, std::int32_t* place, void* value);

// out[chunks[place / 16] * 16 + place % 16] = value; without chunks: out[place] = value.
void put_in_place(Stream stream, const std::int32_t* chunks, Float type, void* out);

// The union, shared places added, of which the k of largest magnitude are kept, ties to the lower
// place, by ascending place. NaN is the largest, and the same NaN whatever it was. Returns how
// many. Throws std::bad_alloc.
std::size_t top_of_two(const Streams& set, Stream a, Stream b, std::size_t k,
                       std::int32_t* place, Float type, void* value);

// out[j] = 1 if place[j] is among the others, else 0. Both ascend.
void contained(const std::int32_t* place, std::size_t count, const std::int32_t* among,
               std::size_t others, std::uint8_t* out);

}  // namespace gradwire
