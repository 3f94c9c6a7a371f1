// Shared by AVX2 and AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "ones.hpp"

namespace gradwire {
namespace {

inline __m128i eight_bytes(const std::uint8_t* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

// Writes the positions of the ones of a word, plus `base`, where 64 + width fit; returns how many.
// It works byte by byte: looked up, half a word takes 12 cycles on Zen 5; compressed by a mask, 20.
inline std::size_t place_ones(std::uint64_t word, std::uint32_t base, std::uint32_t* to) {
    __m256i first = _mm256_set1_epi32(static_cast<int>(base));
    const __m256i byte_on = _mm256_set1_epi32(8);
    std::size_t count = 0;
#pragma GCC unroll 8
    for (int part = 0; part < 8; ++part) {
        const auto byte = static_cast<std::uint32_t>(word >> (8 * part) & 255u);
        const __m256i at = _mm256_cvtepu8_epi32(eight_bytes(ones_of.at[byte]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + count), _mm256_add_epi32(at, first));
        first = _mm256_add_epi32(first, byte_on);
        count += static_cast<std::size_t>(__builtin_popcount(byte));
    }
    return count;
}

inline void add_lowest(float* sum, __m128 term) {
    _mm_store_ss(sum, _mm_add_ss(_mm_load_ss(sum), term));
}

// sum[place[i]] += term[i] for four different places. Places are loaded in pairs and terms
// together, because memory ports can spare only one load for each addition, that of the sum.
inline void add_four(float* sum, const std::uint32_t* place, const float* term) {
    std::uint64_t pair[2];
    __builtin_memcpy(pair, place, sizeof pair);
    const __m128 low = _mm_loadu_ps(term);
    const __m128 high = _mm_movehl_ps(low, low);
    add_lowest(sum + static_cast<std::uint32_t>(pair[0]), low);
    add_lowest(sum + (pair[0] >> 32), _mm_movehdup_ps(low));
    add_lowest(sum + static_cast<std::uint32_t>(pair[1]), high);
    add_lowest(sum + (pair[1] >> 32), _mm_movehdup_ps(high));
}

}  // namespace
}  // namespace gradwire
