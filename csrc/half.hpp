// Conversions of short floats, one at a time, with the bits that the processor's own conversions
// give (NaN: quiet, bf16: 0x7fc0). They are static, not inline: each translation unit keeps its own
// copy, compiled for its own instruction set.
#pragma once

#include <cstring>

#include "kernels.hpp"

namespace gradwire {

static inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float widen(float value) { return value; }

static inline float widen(bf16 value) { return float_of(std::uint32_t{value.bits} << 16); }

static inline float widen(fp16 value) {
    const std::uint32_t sign = std::uint32_t{value.bits & 0x8000u} << 16;
    const std::uint32_t rest = value.bits & 0x7fffu;
    if (rest > 0x7c00u) return float_of(sign | 0x7fc00000u | (rest << 13));
    if (rest == 0x7c00u) return float_of(sign | infinity_bits);
    if (rest < 0x400u) return float_of(sign | bits_of(static_cast<float>(rest) * 0x1p-24f));
    return float_of(sign | ((rest << 13) + 0x38000000u));
}

static inline void narrow(float value, float* target) { *target = value; }

static inline void narrow(float value, bf16* target) {
    const std::uint32_t bits = bits_of(value);
    const bool nan = (bits & magnitude_mask) > infinity_bits;
    target->bits =
        static_cast<std::uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline void narrow(float value, fp16* target) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    std::uint32_t rest = bits & magnitude_mask;
    if (rest > infinity_bits) {
        rest = 0x7e00u | ((rest >> 13) & 0x3ffu);
    } else if (rest >= 0x47800000u) {  // 65536 and more
        rest = 0x7c00u;
    } else if (rest < 0x38800000u) {  // subnormal: let the addition round to a multiple of 2^-24
        rest = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    } else {
        rest = (rest + 0xfffu + ((rest >> 13) & 1u) - 0x38000000u) >> 13;
    }
    target->bits = static_cast<std::uint16_t>(sign | rest);
}

// Rounds to the nearest integer, ties to even, for magnitudes below 2^22.
static inline std::int32_t nearest(float x) {
    constexpr float shift = 12582912.0f;  // 1.5 · 2^23: the last bit of the sum is worth 1
    return static_cast<std::int32_t>(bits_of(x + shift) - bits_of(shift));
}

// Returns an 8-bit float as fp16: sign in bit 7, the rest moved up by `left`.
static inline fp16 as_half(std::uint8_t code, int left) {
    const unsigned sign = (code & 0x80u) << 8;
    return {static_cast<std::uint16_t>(sign | (code & 0x7fu) << left)};
}

static inline std::size_t width_of(Float type) { return type == Float::fp32 ? 4 : 2; }

// Calls work(data as a pointer to the element type); the type is chosen at run time.
template <class Work>
static inline auto with_type(Float type, const void* data, Work work) {
    switch (type) {
        case Float::bf16: return work(static_cast<const bf16*>(data));
        case Float::fp16: return work(static_cast<const fp16*>(data));
        default: return work(static_cast<const float*>(data));
    }
}

template <class Work>
static inline auto with_type(Float type, void* data, Work work) {
    switch (type) {
        case Float::bf16: return work(static_cast<bf16*>(data));
        case Float::fp16: return work(static_cast<fp16*>(data));
        default: return work(static_cast<float*>(data));
    }
}

}  // namespace gradwire
