// Eight floats in a 256-bit register.
#pragma once

#include <immintrin.h>

#include "half.hpp"
#include "vector_x86.hpp"

namespace gradwire {
namespace {

struct Vector {
    static constexpr std::size_t width = 8;
    __m256 a;
};

// Processors without AVX-512 have few instructions in flight at once: the loads of a dozen lines.
// Only fetching ahead, or reading two places side by side, keeps the memory busy.
constexpr bool has_short_window = true;

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
inline void stream_line(std::uint8_t* to, const std::uint8_t* from) {
    for (int i = 0; i < 64; i += 32)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}
inline void fence() { _mm_sfence(); }

inline Vector fill(float a) { return {_mm256_set1_ps(a)}; }
inline Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.a, b.a)}; }
inline Vector sub(Vector a, Vector b) { return {_mm256_sub_ps(a.a, b.a)}; }
inline Vector mul(Vector a, Vector b) { return {_mm256_mul_ps(a.a, b.a)}; }
inline Vector div(Vector a, Vector b) { return {_mm256_div_ps(a.a, b.a)}; }
inline Vector square_root(Vector a) { return {_mm256_sqrt_ps(a.a)}; }
inline Vector bit_or(Vector a, Vector b) { return {_mm256_or_ps(a.a, b.a)}; }

struct Bound {
    __m256i less;
};  // magnitudes are below 2^31, so a signed comparison works
inline Bound bound(std::uint32_t bits) { return {_mm256_set1_epi32(static_cast<int>(bits) - 1)}; }

inline std::uint32_t reaches(Vector v, Bound least) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(magnitude_mask));
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v.a), all);
    const __m256i above = _mm256_cmpgt_epi32(magnitude, least.less);
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
}

// Returns the larger magnitude, compared as integers, so that NaN is the largest; a must be one
// already.
inline Vector larger(Vector a, Vector b) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(magnitude_mask));
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(b.a), all);
    return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.a), magnitude))};
}

// One bit per lane: its sign bit.
inline std::uint32_t signs(Vector v) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(v.a));
}

// One bit per lane: whether it is neither 0 nor -0.
inline std::uint32_t nonzero(Vector v) {
    // The sign goes out on the left: equal to zero as integers, whatever counts as zero for floats.
    const __m256i rest = _mm256_slli_epi32(_mm256_castps_si256(v.a), 1);
    const __m256i is_zero = _mm256_cmpeq_epi32(rest, _mm256_setzero_si256());
    return 0xffu ^ static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_zero)));
}

// One bit per lane: whether it is below zero, subnormal numbers too; -0 is not.
inline std::uint32_t negatives(Vector v) { return signs(v) & nonzero(v); }

inline __m256 lanes_of(std::uint32_t mask) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), lane);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane));
}

// a where the mask is set, b elsewhere.
inline Vector choose(std::uint32_t mask, Vector a, Vector b) {
    return {_mm256_blendv_ps(b.a, a.a, lanes_of(mask))};
}

// Chooses one of two values per lane, by the lane's bit in a bit array.
struct Either {
    Vector clear, set;
};
inline Either either(float clear, float set) { return {fill(clear), fill(set)}; }
inline Vector pick(Either e, const std::uint8_t* bits, std::size_t i) {
    return choose(bits[i / 8], e.set, e.clear);
}

// sum + a where the mask is set.
inline Vector add_where(std::uint32_t mask, Vector sum, Vector a) {
    return choose(mask, add(sum, a), sum);
}

// Flips the sign where the mask is set.
inline Vector negated(std::uint32_t mask, Vector v) {
    return {_mm256_xor_ps(v.a, _mm256_and_ps(lanes_of(mask), _mm256_set1_ps(-0.0f)))};
}

// Signed bytes as floats.
inline Vector from_signed(const std::uint8_t* from) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(from)))};
}

// Stores the nearest integers (ties to even) as signed bytes.
inline void store_signed(std::uint8_t* to, Vector v) {
    const __m256i whole = _mm256_cvtps_epi32(v.a);
    const __m128i half =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(half, half));
}

// Floats with these exponents and no mantissa.
inline Vector from_exponents(const std::uint8_t* from) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight_bytes(from)), 23))};
}

// Floats from codes with the sign in bit 7; the rest is moved up by `left` to its position in fp16.
inline Vector from_minifloat(const std::uint8_t* from, int left) {
    const __m128i code = _mm_slli_epi16(_mm_cvtepi8_epi16(eight_bytes(from)), left);
    const __m128i kept = _mm_set1_epi16(static_cast<short>(0x8000 | 0x7f << left));
    return {_mm256_cvtph_ps(_mm_and_si128(code, kept))};
}

// Codes of up to eight bits, one per lane, and what their lowest four bits mean.
struct Small {
    __m256i a;
};
struct Table {
    __m256 low;
    __m256 high;
};
inline Small small(const std::uint8_t* from) { return {_mm256_cvtepu8_epi32(eight_bytes(from))}; }
inline Small shifted(Small s, int right) { return {_mm256_srli_epi32(s.a, right)}; }
inline Table table(const float* meaning, float scale) {
    const __m256 by = _mm256_set1_ps(scale);
    return {_mm256_mul_ps(_mm256_loadu_ps(meaning), by),
            _mm256_mul_ps(_mm256_loadu_ps(meaning + 8), by)};
}
inline Vector lookup(Table t, Small s) {
    const __m256 low = _mm256_permutevar8x32_ps(t.low, s.a);
    const __m256 high = _mm256_permutevar8x32_ps(t.high, s.a);
    return {_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(s.a, 28)))};
}

// 16 fractions, as multiples of 1 / 65536.
struct Fractions {
    __m256i a;
};
inline Fractions fractions(const std::uint8_t* from) {  // from bytes, multiples of 1 / 256
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8)};
}

// The integer part of three times each, two in a lane: one in the lower half, one in the upper.
inline Small thirds(Fractions f) { return {_mm256_mulhi_epu16(f.a, _mm256_set1_epi16(3))}; }

// Three times each, without the integer part.
inline Fractions tripled(Fractions f) { return {_mm256_mullo_epi16(f.a, _mm256_set1_epi16(3))}; }

// Remembers whether any lane that it has seen reaches a bound.
struct Seen {
    std::uint32_t lanes = 0;
    void look(Vector a, Bound least) { lanes |= reaches(a, least); }
    bool any() const { return lanes != 0; }
};

// Places: numbers below 2^32, one per lane.
struct Places {
    __m256i a;
};
inline Places load(const std::uint32_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
}
inline void store(std::uint32_t* to, Places p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), p.a);
}
inline Places count_from(std::uint32_t first) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(first)))};
}

// Moves the lanes of the mask to the front, in order.
inline __m256i packed(__m256i lanes, std::uint32_t mask) {
    const __m256i order = _mm256_cvtepu8_epi32(eight_bytes(ones_of.at[mask]));
    return _mm256_permutevar8x32_epi32(lanes, order);
}

// Writes the lanes of the mask, in order, as a whole vector; returns how many they are.
inline std::size_t keep(Places p, std::uint32_t mask, std::uint32_t* to) {
    store(to, {packed(p.a, mask & 0xffu)});
    return static_cast<std::size_t>(__builtin_popcount(mask & 0xffu));
}

// Writes a whole vector of each.
inline std::size_t compress(Vector v, std::uint32_t mask, std::uint32_t base, std::uint32_t* bits,
                            std::uint32_t* index) {
    store(bits, {packed(_mm256_castps_si256(v.a), mask)});
    return keep(count_from(base), mask, index);
}

// Returns a bit for each of 64 bytes: whether it is not 0.
inline std::uint64_t marked(const std::uint8_t* bytes) {
    std::uint64_t out = 0;
    for (int half = 0; half < 2; ++half) {
        const __m256i all =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32 * half));
        const __m256i clear = _mm256_cmpeq_epi8(all, _mm256_setzero_si256());
        const auto set = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(clear));
        out |= std::uint64_t{set} << (32 * half);
    }
    return out;
}

// Describes how packed numbers of `bits` < 32 bits each are spread over the lanes.
struct Spread {
    __m256i first, second, right, left, mask;
    __m128i shift;
};
inline Spread spread_of(unsigned bits) {
    const __m256i at =
        _mm256_mullo_epi32(count_from(0).a, _mm256_set1_epi32(static_cast<int>(bits)));
    const __m256i first = _mm256_srli_epi32(at, 5);
    const __m256i right = _mm256_and_si256(at, _mm256_set1_epi32(31));
    return {first,
            _mm256_add_epi32(first, _mm256_set1_epi32(1)),
            right,
            _mm256_sub_epi32(_mm256_set1_epi32(32), right),
            _mm256_set1_epi32(static_cast<int>((1u << bits) - 1)),
            _mm_cvtsi32_si128(static_cast<int>(bits))};
}

// Returns (high - number) followed by the lower bits, which are packed in 64 bytes. A shift by 32
// gives 0.
inline Places joined(Places high, Places number, const std::uint8_t* low, const Spread& how) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
    const __m256i one =
        _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(words, how.first), how.right);
    const __m256i two =
        _mm256_sllv_epi32(_mm256_permutevar8x32_epi32(words, how.second), how.left);
    const __m256i rest = _mm256_and_si256(_mm256_or_si256(one, two), how.mask);
    const __m256i upper = _mm256_sll_epi32(_mm256_sub_epi32(high.a, number.a), how.shift);
    return {_mm256_or_si256(upper, rest)};
}

// Returns a bit for each lane that is not above the lane before it, as signed numbers.
inline std::uint32_t falls(Places before, Places now) {
    const __m256i across = _mm256_permute2x128_si256(before.a, now.a, 0x21);
    const __m256i last = _mm256_alignr_epi8(now.a, across, 12);
    const __m256i above = _mm256_cmpgt_epi32(now.a, last);
    return ~static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above))) & 0xffu;
}

}  // namespace
}  // namespace gradwire
