// Sixteen floats in a 512-bit register.
#pragma once

#include <immintrin.h>

#include "half.hpp"
#include "vector_x86.hpp"

namespace gradwire {
namespace {

struct Vector {
    static constexpr std::size_t width = 16;
    __m512 a;
};

constexpr bool has_short_window = false;

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
inline void stream_line(std::uint8_t* to, const std::uint8_t* from) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
inline void fence() { _mm_sfence(); }

inline Vector fill(float a) { return {_mm512_set1_ps(a)}; }
inline Vector add(Vector a, Vector b) { return {_mm512_add_ps(a.a, b.a)}; }
inline Vector sub(Vector a, Vector b) { return {_mm512_sub_ps(a.a, b.a)}; }
inline Vector mul(Vector a, Vector b) { return {_mm512_mul_ps(a.a, b.a)}; }
inline Vector div(Vector a, Vector b) { return {_mm512_div_ps(a.a, b.a)}; }
inline Vector square_root(Vector a) { return {_mm512_sqrt_ps(a.a)}; }
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

// Returns the larger magnitude, compared as integers, so that NaN is the largest; a must be one
// already.
inline Vector larger(Vector a, Vector b) {
    const __m512i all = _mm512_set1_epi32(static_cast<int>(magnitude_mask));
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(b.a), all);
    return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.a), magnitude))};
}

// One bit per lane: its sign bit.
inline std::uint32_t signs(Vector v) {
    return _mm512_movepi32_mask(_mm512_castps_si512(v.a));
}

// One bit per lane: whether it is neither 0 nor -0.
inline std::uint32_t nonzero(Vector v) {
    const __m512i all = _mm512_set1_epi32(static_cast<int>(magnitude_mask));
    return _mm512_test_epi32_mask(_mm512_castps_si512(v.a), all);
}

// One bit per lane: whether it is below zero, subnormal numbers too; -0 is not.
inline std::uint32_t negatives(Vector v) {
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(~magnitude_mask));
    return _mm512_cmpgt_epu32_mask(_mm512_castps_si512(v.a), sign);
}

// a where the mask is set, b elsewhere.
inline Vector choose(std::uint32_t mask, Vector a, Vector b) {
    return {_mm512_mask_mov_ps(b.a, static_cast<__mmask16>(mask), a.a)};
}

// Chooses one of two values per lane, by the lane's bit in a bit array; reads the 32 bits around
// it. This is a table lookup, in which only the lowest bit of an index counts; masks would all need
// the same execution unit.
struct Either {
    __m512 values;
};
inline Either either(float clear, float set) {
    return {_mm512_mask_blend_ps(0xaaaa, _mm512_set1_ps(clear), _mm512_set1_ps(set))};
}
inline Vector pick(Either e, const std::uint8_t* bits, std::size_t i) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_set1_epi32(static_cast<int>(i % 32));
    int word;
    __builtin_memcpy(&word, bits + i / 32 * 4, sizeof word);
    const __m512i bit = _mm512_srlv_epi32(_mm512_set1_epi32(word), _mm512_add_epi32(lanes, first));
    return {_mm512_permutexvar_ps(bit, e.values)};
}

// sum + a where the mask is set.
inline Vector add_where(std::uint32_t mask, Vector sum, Vector a) {
    return {_mm512_mask_add_ps(sum.a, static_cast<__mmask16>(mask), sum.a, a.a)};
}

inline __m128i sixteen_bytes(const std::uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Flips the sign where the mask is set.
inline Vector negated(std::uint32_t mask, Vector v) {
    const __m512i x = _mm512_castps_si512(v.a);
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return {_mm512_castsi512_ps(
        _mm512_mask_xor_epi32(x, static_cast<__mmask16>(mask), x, sign))};
}

// Signed bytes as floats.
inline Vector from_signed(const std::uint8_t* from) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(from)))};
}

// Stores the nearest integers (ties to even) as signed bytes.
inline void store_signed(std::uint8_t* to, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.a)));
}

// Floats with these exponents and no mantissa.
inline Vector from_exponents(const std::uint8_t* from) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(sixteen_bytes(from)), 23))};
}

// Floats from codes with the sign in bit 7; the rest is moved up by `left` to its position in fp16.
inline Vector from_minifloat(const std::uint8_t* from, int left) {
    const __m256i code = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen_bytes(from)), left);
    const __m256i kept = _mm256_set1_epi16(static_cast<short>(0x8000 | 0x7f << left));
    return {_mm512_cvtph_ps(_mm256_and_si256(code, kept))};
}

// Codes of up to eight bits, one per lane, and what their lowest four bits mean.
struct Small {
    __m512i a;
};
struct Table {
    __m512 a;
};
inline Small small(const std::uint8_t* from) { return {_mm512_cvtepu8_epi32(sixteen_bytes(from))}; }
inline Small shifted(Small s, int right) {
    return {_mm512_srli_epi32(s.a, static_cast<unsigned>(right))};
}
inline Table table(const float* meaning, float scale) {
    return {_mm512_mul_ps(_mm512_loadu_ps(meaning), _mm512_set1_ps(scale))};
}
inline Vector lookup(Table t, Small s) { return {_mm512_permutexvar_ps(s.a, t.a)}; }

// 32 fractions, as multiples of 1 / 65536.
struct Fractions {
    __m512i a;
};
inline Fractions fractions(const std::uint8_t* from) {  // from bytes, multiples of 1 / 256
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8)};
}

// The integer part of three times each, two in a lane: one in the lower half, one in the upper.
inline Small thirds(Fractions f) { return {_mm512_mulhi_epu16(f.a, _mm512_set1_epi16(3))}; }

// Three times each, without the integer part. Compilers would turn the product into a shift and a
// sum, and shifts compete for the units that `lookup` needs.
inline Fractions tripled(Fractions f) {
    __m512i three = _mm512_set1_epi16(3);
    asm("" : "+v"(three));
    return {_mm512_mullo_epi16(f.a, three)};
}

// Remembers whether any lane that it has seen reaches a bound.
struct Seen {
    std::uint32_t lanes = 0;
    void look(Vector a, Bound least) { lanes |= reaches(a, least); }
    bool any() const { return lanes != 0; }
};

// Compresses into a register and stores it whole: compressing directly to memory is slow on some
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

// Places: numbers below 2^32, one per lane.
struct Places {
    __m512i a;
};
inline Places load(const std::uint32_t* from) { return {_mm512_loadu_si512(from)}; }
inline void store(std::uint32_t* to, Places p) { _mm512_storeu_si512(to, p.a); }
inline Places count_from(std::uint32_t first) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)))};
}

// Writes the lanes of the mask, in order, as a whole vector; returns how many they are.
inline std::size_t keep(Places p, std::uint32_t mask, std::uint32_t* to) {
    const auto lanes = static_cast<__mmask16>(mask);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(lanes, p.a));
    return static_cast<std::size_t>(__builtin_popcount(mask));
}

// Returns a bit for each of 64 bytes: whether it is not 0.
inline std::uint64_t marked(const std::uint8_t* bytes) {
    const __m512i all = _mm512_loadu_si512(bytes);
    return _mm512_test_epi8_mask(all, all);
}

// Describes how packed numbers of `bits` < 32 bits each are spread over the lanes.
struct Spread {
    __m512i first, second, right, left, mask;
    __m128i shift;
};
inline Spread spread_of(unsigned bits) {
    const __m512i at =
        _mm512_mullo_epi32(count_from(0).a, _mm512_set1_epi32(static_cast<int>(bits)));
    const __m512i first = _mm512_srli_epi32(at, 5);
    const __m512i right = _mm512_and_si512(at, _mm512_set1_epi32(31));
    return {first,
            _mm512_add_epi32(first, _mm512_set1_epi32(1)),
            right,
            _mm512_sub_epi32(_mm512_set1_epi32(32), right),
            _mm512_set1_epi32(static_cast<int>((1u << bits) - 1)),
            _mm_cvtsi32_si128(static_cast<int>(bits))};
}

// Returns (high - number) followed by the lower bits, which are packed in 64 bytes. A shift by 32
// gives 0.
inline Places joined(Places high, Places number, const std::uint8_t* low, const Spread& how) {
    const __m512i words = _mm512_loadu_si512(low);
    const __m512i one = _mm512_srlv_epi32(_mm512_permutexvar_epi32(how.first, words), how.right);
    const __m512i two = _mm512_sllv_epi32(_mm512_permutexvar_epi32(how.second, words), how.left);
    const __m512i rest = _mm512_and_si512(_mm512_or_si512(one, two), how.mask);
    const __m512i upper = _mm512_sll_epi32(_mm512_sub_epi32(high.a, number.a), how.shift);
    return {_mm512_or_si512(upper, rest)};
}

// Returns a bit for each lane that is not above the lane before it, as signed numbers.
inline std::uint32_t falls(Places before, Places now) {
    return _mm512_cmple_epi32_mask(now.a, _mm512_alignr_epi32(now.a, before.a, 15));
}

}  // namespace
}  // namespace gradwire
