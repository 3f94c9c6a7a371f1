// Eight floats as two NEON registers of four.
#pragma once

#include <arm_neon.h>

#include "ones.hpp"
#include "vector_halves.hpp"

namespace gradwire {
namespace {

// Intrinsics have vector types of their own, with the same lanes.
template <class Out, class In>
inline Out lanes_as(In from) {
    static_assert(sizeof(Out) == sizeof(In));
    Out out;
    __builtin_memcpy(&out, &from, sizeof out);
    return out;
}
inline uint32x4_t native(Words a) { return lanes_as<uint32x4_t>(a); }
inline float32x4_t native(Floats a) { return lanes_as<float32x4_t>(a); }
inline uint8x16_t bytes_of(Words a) { return lanes_as<uint8x16_t>(a); }

// Converts fp16 words to floats, and back.
inline Floats widened(Words half) {
    return lanes_as<Floats>(vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(native(half)))));
}
inline Words narrowed(Floats a, const fp16*) {
    return lanes_as<Words>(vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(native(a)))));
}

inline Vector square_root(Vector a) {
    return halves([&](int i) { return lanes_as<Floats>(vsqrtq_f32(native(a.half[i]))); });
}

// Returns one bit per lane that is set in two halves.
inline std::uint32_t mask_of(Ints low, Ints high) {
    const Ints bits = (low & Ints{1, 2, 4, 8}) | (high & Ints{16, 32, 64, 128});
    return vaddvq_u32(lanes_as<uint32x4_t>(bits));
}

// Stores the nearest integers (ties to even) as signed bytes.
inline void store_signed(std::uint8_t* to, Vector v) {
    const int16x4_t low = vqmovn_s32(vcvtnq_s32_f32(native(v.half[0])));
    const int16x4_t high = vqmovn_s32(vcvtnq_s32_f32(native(v.half[1])));
    vst1_u8(to, vreinterpret_u8_s8(vqmovn_s16(vcombine_s16(low, high))));
}

// What the lowest four bits of codes mean.
struct Table {
    uint8x16x4_t bytes;
};
inline Table table(const float* meaning, float scale) {
    Table out;
    for (int i = 0; i < 4; ++i)
        out.bytes.val[i] = vreinterpretq_u8_f32(vmulq_n_f32(vld1q_f32(meaning + 4 * i), scale));
    return out;
}
// The bytes of 32-bit numbers, by their places.
inline uint8x16_t bytes_at(Words place) { return bytes_of(place * 0x04040404u + 0x03020100u); }
inline Vector lookup(const Table& t, Small s) {
    return halves([&](int i) {
        return lanes_as<Floats>(vqtbl4q_u8(t.bytes, bytes_at(s.half[i] & 15u)));
    });
}

// The integer part of three times each fraction: how many of 1/3 and 2/3 it exceeds.
inline Small thirds(Fractions f) {
    return halves<Small>([&](int i) {
        const auto all = lanes_as<uint16x8_t>(f.half[i]);
        const uint16x8_t one = vcgtq_u16(all, vdupq_n_u16(0x5555));
        const uint16x8_t two = vcgtq_u16(all, vdupq_n_u16(0xaaaa));
        return lanes_as<Words>(vnegq_s16(vreinterpretq_s16_u16(vaddq_u16(one, two))));
    });
}

// Moves the lanes of a mask of four to the front, in order.
struct Fronts {
    std::uint32_t bytes[16][4];
};
constexpr Fronts make_fronts() {
    Fronts out{};
    for (unsigned mask = 0; mask < 16; ++mask) {
        unsigned count = 0;
        for (std::uint32_t lane = 0; lane < 4; ++lane)
            if ((mask >> lane & 1u) != 0)
                out.bytes[mask][count++] = lane * 0x04040404u + 0x03020100u;
    }
    return out;
}
constexpr Fronts fronts = make_fronts();
inline uint32x4_t to_front(Words lanes, std::uint32_t mask) {
    const uint8x16_t order = vreinterpretq_u8_u32(vld1q_u32(fronts.bytes[mask]));
    return vreinterpretq_u32_u8(vqtbl1q_u8(bytes_of(lanes), order));
}

// Writes the lanes of the mask, in order, where a whole vector fits; returns how many they are.
inline std::size_t keep(Places p, std::uint32_t mask, std::uint32_t* to) {
    const auto low = static_cast<std::size_t>(ones_of.count[mask & 15u]);
    vst1q_u32(to, to_front(p.half[0], mask & 15u));
    vst1q_u32(to + low, to_front(p.half[1], mask >> 4 & 15u));
    return low + ones_of.count[mask >> 4 & 15u];
}
inline std::size_t compress(Vector a, std::uint32_t mask, std::uint32_t base, std::uint32_t* bits,
                            std::uint32_t* index) {
    keep({{words_of(a.half[0]), words_of(a.half[1])}}, mask, bits);
    return keep(count_from(base), mask, index);
}

// Writes the positions of the ones of a word, plus `base`, where 64 + width fit; returns how many.
// All bytes are counted at once, and a product adds the counts up.
inline std::size_t place_ones(std::uint64_t word, std::uint32_t base, std::uint32_t* to) {
    const std::uint64_t counts = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(word))), 0);
    const std::uint64_t until = counts * 0x0101010101010101u;
    std::size_t before = 0;
#pragma GCC unroll 8
    for (unsigned part = 0; part < 8; ++part) {
        const uint16x8_t at = vmovl_u8(vld1_u8(ones_of.at[word >> (8 * part) & 255u]));
        const uint32x4_t first = vdupq_n_u32(base + 8 * part);
        vst1q_u32(to + before, vaddw_u16(first, vget_low_u16(at)));
        vst1q_u32(to + before + 4, vaddw_high_u16(first, at));
        before = static_cast<std::size_t>(until >> (8 * part) & 255u);
    }
    return before;
}

// Returns a bit for each of 64 bytes: whether it is not 0.
inline std::uint64_t marked(const std::uint8_t* bytes) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t set[4];
    for (int i = 0; i < 4; ++i) {
        const uint8x16_t all = vld1q_u8(bytes + 16 * i);
        set[i] = vandq_u8(vtstq_u8(all, all), bit);
    }
    const uint8x16_t low = vpaddq_u8(set[0], set[1]), high = vpaddq_u8(set[2], set[3]);
    const uint8x16_t both = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(both, both)), 0);
}

// Describes how packed numbers of `bits` < 32 bits each are spread over the lanes.
struct Spread {
    uint8x16_t first[2], second[2];  // the bytes of the words that a number begins and ends in
    int32x4_t right[2], left[2];     // how far to shift them to the left
    std::uint32_t mask;
    unsigned bits;
};
inline Spread spread_of(unsigned bits) {
    Spread out;
    for (int i = 0; i < 2; ++i) {
        const Words at = count_from(0).half[i] * bits, word = at >> 5, past = at & 31u;
        out.first[i] = bytes_at(word);
        out.second[i] = bytes_at(word + 1u);
        out.right[i] = lanes_as<int32x4_t>(Words{} - past);
        out.left[i] = lanes_as<int32x4_t>(32u - past);
    }
    out.mask = (1u << bits) - 1;
    out.bits = bits;
    return out;
}

// Returns (high - number) followed by the lower bits, which are packed in 64 bytes. A shift by 32
// gives 0.
inline Places joined(Places high, Places number, const std::uint8_t* low, const Spread& how) {
    const uint8x16x2_t packed = {{vld1q_u8(low), vld1q_u8(low + 16)}};
    return halves<Places>([&](int i) {
        const uint32x4_t one = vreinterpretq_u32_u8(vqtbl2q_u8(packed, how.first[i]));
        const uint32x4_t two = vreinterpretq_u32_u8(vqtbl2q_u8(packed, how.second[i]));
        const uint32x4_t both =
            vorrq_u32(vshlq_u32(one, how.right[i]), vshlq_u32(two, how.left[i]));
        return (high.half[i] - number.half[i]) << how.bits | (lanes_as<Words>(both) & how.mask);
    });
}

// Returns a bit for each lane that is not above the lane before it, as signed numbers.
inline std::uint32_t falls(Places before, Places now) {
    const auto last = [](Words a, Words b) {
        return lanes_as<Ints>(vextq_u32(native(a), native(b), 3));
    };
    return mask_of(ints_of(now.half[0]) <= last(before.half[1], now.half[0]),
                   ints_of(now.half[1]) <= last(now.half[0], now.half[1]));
}

}  // namespace
}  // namespace gradwire

#include "vector_halves.inl"
