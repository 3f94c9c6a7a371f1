// Sums sparse payloads and decodes their places. Each instruction set has a table of these
// functions. They are written once, in entries.inl, and all give the same bits.
#pragma once

#include "kernels.hpp"

namespace gradwire {

inline constexpr std::size_t spare_sums = 16;  // a line after a tile, for entries outside it

struct SparsePayload {
    const std::int32_t*
        index;  // strictly ascending, in 0 ... n - 1; first_violation checks it, not this code
    const void* value;
    std::size_t count;
    Float type;
    std::size_t next = 0;  // the first entry that is not yet in the sum
};

// An Elias-Fano code of k indices below n: low bits of `width` each, then the upper bits.
struct EliasFano {
    std::size_t n, k;
    unsigned width;
    const std::uint8_t* section;
    std::size_t bytes;  // of the section
    const std::uint8_t* upper;
    std::size_t upper_bytes;
};

struct Progress {
    std::size_t words;  // 64-bit words that were read
    std::size_t found;  // entries in them
};

// The functions that entries.inl defines for each instruction set.
struct Sparse {
    // target = (sum in list order, in fp32, from zero) / divisor, rounded to the type. stream:
    // write around the cache. Moves the payloads' `next`.
    void (*accumulate)(Float type, void* target, std::size_t n, SparsePayload* payloads,
                       std::size_t count, float divisor, bool stream);
    // Decodes most of a list; the section may hold anything. Writes the entries in the first words
    // of the upper bits if all are good, and none if one of them is not. Stops before k entries;
    // the rest is not read.
    Progress (*elias_fano)(EliasFano code, std::int32_t* index);
    // Writes the positions of ones in the first words of a bitmap. Stops before k; the bitmap may
    // have k or more ones.
    Progress (*ones)(const std::uint8_t* bits, std::size_t words, std::size_t k,
                     std::int32_t* index);
    // Writes the entries with a magnitude of at least `least` and below `bound`, in order; returns
    // how many. The outputs need room for one more vector; they may be the list itself.
    std::size_t (*between)(const std::uint32_t* bits, const std::uint32_t* index,
                           std::size_t count, std::uint32_t least, std::uint32_t bound,
                           std::uint32_t* bits_out, std::uint32_t* index_out);
};

extern const Sparse plain_sparse;
#ifdef GRADWIRE_X86
extern const Sparse avx2_sparse;
extern const Sparse avx512_sparse;
#endif
#ifdef GRADWIRE_NEON
extern const Sparse neon_sparse;
#endif

}  // namespace gradwire
