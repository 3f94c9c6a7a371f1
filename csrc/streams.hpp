// Streams are sorted sparse vectors: places (strictly ascending) and values. They are cut among
// owners, summed, put in place, compared. Nothing is checked here; gradwire/kernels/streams.py
// does.
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

// A tile of a sum of few entries, with marks that show where they are. Before and after each use
// everything is zero except the spare sums and `where`.
struct Marked {
    alignas(64) float sum[wide_span + spare_sums];
    alignas(64) std::uint8_t marks[wide_span / mark_span];
    std::uint32_t where[wide_span / mark_span + 16];  // content undefined
};

// This thread's tile. Throws std::bad_alloc.
Marked& marked_tile();

// Rows anywhere in memory, grouped in runs: run u ends before row end[u].
struct Runs {
    const void* const* row;
    const std::int64_t* end;
    std::size_t count;
};

// Chunks of 16 elements are dealt to owners in rounds. Each round begins with an owner hashed from
// its number, and goes on to the next: so an owner's chunk r is in round r, and no table is needed.
//
//     round   0        1        2        3          of 3 owners
//     chunk   0  1  2  3  4  5  6  7  8  9  10
//     owner   2  0  1  1  2  0  2  0  1  0  1
struct Deal {
    std::uint32_t owners;  // 1 to 65,536
    std::uint32_t seed;
};

// The functions that streams.inl defines for each instruction set.
struct Streams {
    const Passes* passes;
    const Sparse* sparse;
    // Writes the sum of the payloads over n elements, as `accumulate` computes it, without the
    // elements whose fp32 sum is zero. Returns how many are left. Moves the payloads' `next`.
    std::size_t (*merge)(SparsePayload* payloads, std::size_t count, std::size_t n, float divisor,
                         Float type, std::int32_t* place, void* value, Marked& tile);
    // Writes the entries owner after owner, in their order, with places among the owner's elements.
    // Returns the counts by owner. Throws std::bad_alloc.
    std::vector<std::size_t> (*split)(Stream whole, Deal deal, std::int32_t* place, void* value);
    // Converts places among an owner's elements to places in the whole.
    void (*flat_places)(const std::int32_t* place, std::size_t count, std::uint32_t owner,
                        Deal deal, std::int32_t* out);
    // Sums each run's rows, of `width` elements, in order, in fp32, from zero, and divides: one row
    // of `out` per run.
    void (*sum_runs)(Float type, Runs runs, std::size_t width, float divisor, Float out_type,
                     void* out);
};

extern const Streams plain_streams;
#ifdef GRADWIRE_X86
extern const Streams avx2_streams;
extern const Streams avx512_streams;
#endif
#ifdef GRADWIRE_NEON
extern const Streams neon_streams;
#endif

// out[place] = value.
void put_in_place(Stream stream, Float type, void* out);

// Writes the k entries of largest magnitude of the sum of both, by ascending place; ties go to the
// lower place. NaN is the largest, and every NaN becomes the same one. Returns how many. Throws
// std::bad_alloc.
std::size_t top_of_two(const Streams& set, Stream a, Stream b, std::size_t k,
                       std::int32_t* place, Float type, void* value);

// out[j] = 1 if place[j] is among the others, else 0. Both ascend.
void contained(const std::int32_t* place, std::size_t count, const std::int32_t* among,
               std::size_t others, std::uint8_t* out);

}  // namespace gradwire
