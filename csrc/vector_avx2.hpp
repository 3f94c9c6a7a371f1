// Eight floats in a 256-bit register.
#pragma once

#include <immintrin.h>

#include "half.hpp"

namespace gradwire {
namespace {

struct Vector {
    static constexpr std::size_t width = 8;
    __m256 a;
};

inline Vector load(const float* from) { return {_mm256_loadu_ps(from)}; }

inline Vector load(const bf16* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}

inline Vector load(const fp16* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}

inline __m128i narrowed(Vector v, const bf16*) {
    const __m256i x = _mm256_castps_si256(v.a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.a, v.a, _CMP_UNORD_Q));
    const __m256i out =
        _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);
    return _mm256_castsi256_si128(packed);
}

inline __m128i narrowed(Vector v, const fp16*) {
    return _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* to, Vector v) { _mm256_storeu_ps(to, v.a); }
template <class T>
inline void store(T* to, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrowed(v, to));
}

inline void stream(float* to, Vector v) { _mm256_stream_ps(to, v.a); }
template <class T>
inline void stream(T* to, Vector v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), narrowed(v, to));
}
inline void fence() { _mm_sfence(); }

inline Vector fill(float a) { return {_mm256_set1_ps(a)}; }
inline Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.a, b.a)}; }
inline Vector sub(Vector a, Vector b) { return {_mm256_sub_ps(a.a, b.a)}; }
inline Vector mul(Vector a, Vector b) { return {_mm256_mul_ps(a.a, b.a)}; }
inline Vector div(Vector a, Vector b) { return {_mm256_div_ps(a.a, b.a)}; }
inline Vector bit_or(Vector a, Vector b) { return {_mm256_or_ps(a.a, b.a)}; }

struct Bound {
    __m256i less;
};  // magnitudes are below 2^31, so the signed comparison serves
inline Bound bound(std::uint32_t bits) { return {_mm256_set1_epi32(static_cast<int>(bits) - 1)}; }

inline std::uint32_t reaches(Vector v, Bound least) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(magnitude_mask));
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v.a), all);
    const __m256i above = _mm256_cmpgt_epi32(magnitude, least.less);
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
}

// Whether any lane of what was looked at reaches a bound.
struct Seen {
    std::uint32_t lanes = 0;
    void look(Vector a, Bound least) { lanes |= reaches(a, least); }
    bool any() const { return lanes != 0; }
};

inline std::size_t compress(Vector v, std::uint32_t mask, std::uint32_t base, std::uint32_t* bits,
                            std::uint32_t* index) {
    alignas(32) std::uint32_t lane[Vector::width];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), _mm256_castps_si256(v.a));
    std::size_t count = 0;
    for (; mask != 0; mask &= mask - 1) {
        const auto i = static_cast<std::uint32_t>(__builtin_ctz(mask));
        bits[count] = lane[i];
        index[count++] = base + i;
    }
    return count;
}

}  // namespace
}  // namespace gradwire
