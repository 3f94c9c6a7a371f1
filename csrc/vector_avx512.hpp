// Sixteen floats in a 512-bit register.
#pragma once

#include <immintrin.h>

#include "half.hpp"

namespace gradwire {
namespace {

struct Vector {
    static constexpr std::size_t width = 16;
    __m512 a;
};

inline Vector load(const float* from) { return {_mm512_loadu_ps(from)}; }

inline Vector load(const bf16* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

inline Vector load(const fp16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

inline __m256i narrowed(Vector v, const bf16*) {
    const __m512i x = _mm512_castps_si512(v.a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(v.a, v.a, _CMP_UNORD_Q);
    const __m512i out =
        _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), nan, _mm512_set1_epi32(0x7fc0));
    return _mm512_cvtepi32_epi16(out);
}

inline __m256i narrowed(Vector v, const fp16*) {
    return _mm512_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* to, Vector v) { _mm512_storeu_ps(to, v.a); }
template <class T>
inline void store(T* to, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed(v, to));
}

inline void stream(float* to, Vector v) { _mm512_stream_ps(to, v.a); }
template <class T>
inline void stream(T* to, Vector v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), narrowed(v, to));
}
inline void fence() { _mm_sfence(); }

inline Vector fill(float a) { return {_mm512_set1_ps(a)}; }
inline Vector add(Vector a, Vector b) { return {_mm512_add_ps(a.a, b.a)}; }
inline Vector sub(Vector a, Vector b) { return {_mm512_sub_ps(a.a, b.a)}; }
inline Vector mul(Vector a, Vector b) { return {_mm512_mul_ps(a.a, b.a)}; }
inline Vector div(Vector a, Vector b) { return {_mm512_div_ps(a.a, b.a)}; }
inline Vector bit_or(Vector a, Vector b) {
    return {
        _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a.a), _mm512_castps_si512(b.a)))};
}

struct Bound {
    __m512i least;
};
inline Bound bound(std::uint32_t bits) { return {_mm512_set1_epi32(static_cast<int>(bits))}; }

inline std::uint32_t reaches(Vector v, Bound least) {
    const __m512i all = _mm512_set1_epi32(static_cast<int>(magnitude_mask));
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(v.a), all);
    return _mm512_cmpge_epi32_mask(magnitude, least.least);
}

// Whether any lane of what was looked at reaches a bound.
struct Seen {
    std::uint32_t lanes = 0;
    void look(Vector a, Bound least) { lanes |= reaches(a, least); }
    bool any() const { return lanes != 0; }
};

// Into a register, then stored whole: the form that compresses to memory is slow on some
// processors.
inline std::size_t compress(Vector v, std::uint32_t mask, std::uint32_t base, std::uint32_t* bits,
                            std::uint32_t* index) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i place = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(base)));
    const auto keep = static_cast<__mmask16>(mask);
    _mm512_storeu_si512(bits, _mm512_maskz_compress_epi32(keep, _mm512_castps_si512(v.a)));
    _mm512_storeu_si512(index, _mm512_maskz_compress_epi32(keep, place));
    return static_cast<std::size_t>(__builtin_popcount(mask));
}

}  // namespace
}  // namespace gradwire
