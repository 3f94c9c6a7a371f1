// What the sum of sparse payloads and the decoding of their places offer, one table of functions
// per instruction set, written once, in entries.inl; all of them give the same bits.
#pragma once

#include "kernels.hpp"

namespace gradwire {

inline constexpr std::size_t spare_sums = 16;  // a line behind a tile of sums, for what is not its

struct SparsePayload {
    const std::int32_t*
        index;  // strictly ascending, in 0 ... n - 1: checked by first_violation, not here
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
    std::size_t words;  // of 64 bits, read
    std::size_t found;  // entries in them
};

// What is written once per instruction set, in entries.inl.
struct Sparse {
    // target = (sum in list order, in fp32, from zero) / divisor, rounded to the type. stream:
    // write around the cache. Moves the payloads' `next`.
    void (*accumulate)(Float type, void* target, std::size_t n, SparsePayload* payloads,
                       std::size_t count, float divisor, bool stream);
    // Most of a list, whatever the section holds: the entries that the first words of the upper
    // bits name, all good; none if one of them is not. Less than k; the rest is not looked at.
    Progress (*elias_fano)(EliasFano code, std::int32_t* index);
    // Where the first words of a bitmap have ones: less than k, all if it has k or more.
    Progress (*ones)(const std::uint8_t* bits, std::size_t words, std::size_t k,
                     std::int32_t* index);
    // The entries of a list with a magnitude from `least` to below `bound`, in order; how many.
    // The results hold a vector more; they may be the list itself.
    std::size_t (*between)(const std::uint32_t* bits, const std::uint32_t* index,
                           std::size_t count, std::uint32_t least, std::uint32_t bound,
                           std::uint32_t* bits_out, std::uint32_t* index_out);
};

extern const Sparse plain_sparse;
#ifdef GRADWIRE_X86
extern const Sparse avx2_sparse;
extern const Sparse avx512_sparse;
#endif

}  // namespace gradwire
