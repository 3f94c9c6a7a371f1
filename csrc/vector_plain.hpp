// Eight floats as two vectors of four, for any machine.
#pragma once

#include "vector_halves.hpp"

namespace gradwire {
namespace {

// Converts fp16 words to floats, and back; the cases are those of half.hpp, each computed in every
// lane.
inline Floats widened(Words half) {
    const Words sign = (half & 0x8000u) << 16, rest = half & 0x7fffu, up = rest << 13;
    const Words subnormal = words_of(__builtin_convertvector(ints_of(rest), Floats) * 0x1p-24f);
    const Ints number = ints_of(rest);
    const Words finite = select(number < 0x400, subnormal, up + 0x38000000u);
    const Words quiet = select(number > 0x7c00, Words{} + 0x400000u, Words{});
    return floats_of(sign | select(number >= 0x7c00, up | infinity_bits | quiet, finite));
}
inline Words narrowed(Floats a, const fp16*) {
    const Words sign = (words_of(a) >> 16) & 0x8000u, rest = magnitudes(a), up = rest >> 13;
    const Ints number = ints_of(rest);
    const Words subnormal = words_of(floats_of(rest) + 0.5f) - 0x3f000000u;
    const Words normal = (rest + 0xfffu + (up & 1u) - 0x38000000u) >> 13;
    const Words finite = select(number < 0x38800000, subnormal, normal);
    const Words infinite = select(number > static_cast<std::int32_t>(infinity_bits),
                                  0x7e00u | (up & 0x3ffu), Words{} + 0x7c00u);
    return sign | select(number >= 0x47800000, infinite, finite);  // 65536 and more
}

inline Vector square_root(Vector a) {
    return halves([&](int i) {
        const Floats x = a.half[i];
        return Floats{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
                      __builtin_sqrtf(x[3])};
    });
}

// Returns one bit per lane that is set in two halves.
inline std::uint32_t mask_of(Ints low, Ints high) {
    const Ints bits = (low & Ints{1, 2, 4, 8}) | (high & Ints{16, 32, 64, 128});
    std::uint64_t pairs[2];
    __builtin_memcpy(pairs, &bits, sizeof bits);
    const std::uint64_t pair = pairs[0] | pairs[1];
    return static_cast<std::uint32_t>(pair | pair >> 32);
}

// Stores the nearest integers (ties to even) as signed bytes.
inline void store_signed(std::uint8_t* to, Vector v) {
    for (std::size_t i = 0; i < Vector::width; ++i)
        to[i] = static_cast<std::uint8_t>(nearest(v.half[i / 4][i % 4]));
}

// What the lowest four bits of codes mean.
struct Table {
    float meaning[16];
};
inline Table table(const float* meaning, float scale) {
    Table out;
    for (std::size_t i = 0; i < 16; ++i) out.meaning[i] = meaning[i] * scale;
    return out;
}
inline Vector lookup(const Table& t, Small s) {
    return halves([&](int i) {
        const Words at = s.half[i] & 15u;
        return Floats{t.meaning[at[0]], t.meaning[at[1]], t.meaning[at[2]], t.meaning[at[3]]};
    });
}

// The integer part of three times each fraction.
inline Small thirds(Fractions f) {
    return halves<Small>([&](int i) {
        const Words both = reinterpret_cast<Words>(f.half[i]);
        const Words low = both & 0xffffu, high = both >> 16;
        return (low + low + low) >> 16 | ((high + high + high) & 0xffff0000u);
    });
}

inline std::size_t compress(Vector a, std::uint32_t mask, std::uint32_t base, std::uint32_t* bits,
                            std::uint32_t* index) {
    std::uint32_t lane[Vector::width];
    __builtin_memcpy(lane, &a, sizeof lane);
    std::size_t count = 0;
    for (; mask != 0; mask &= mask - 1) {
        const auto i = static_cast<std::uint32_t>(__builtin_ctz(mask));
        bits[count] = lane[i];
        index[count++] = base + i;
    }
    return count;
}

// Writes the lanes of the mask, in order; returns how many they are.
inline std::size_t keep(Places p, std::uint32_t mask, std::uint32_t* to) {
    std::uint32_t lane[Vector::width];
    store(lane, p);
    std::size_t count = 0;
    for (; mask != 0; mask &= mask - 1) to[count++] = lane[__builtin_ctz(mask)];
    return count;
}

// Writes the positions of the ones of a word, plus `base`, where 64 + width fit; returns how many.
inline std::size_t place_ones(std::uint64_t word, std::uint32_t base, std::uint32_t* to) {
    std::size_t count = 0;
    for (; word != 0; word &= word - 1)
        to[count++] = base + static_cast<std::uint32_t>(__builtin_ctzll(word));
    return count;
}

// Returns a bit for each of 64 bytes: whether it is not 0.
inline std::uint64_t marked(const std::uint8_t* bytes) {
    std::uint64_t out = 0;
    for (unsigned i = 0; i < 64; ++i) out |= std::uint64_t{bytes[i] != 0} << i;
    return out;
}

// Describes how packed numbers of `bits` < 32 bits each are spread over the lanes.
struct Spread {
    unsigned bits;
};
inline Spread spread_of(unsigned bits) { return {bits}; }

// Returns (high - number) followed by the lower bits, which are packed in 64 bytes.
inline Places joined(Places high, Places number, const std::uint8_t* low, const Spread& how) {
    const std::uint64_t mask = (std::uint64_t{1} << how.bits) - 1;
    std::uint32_t rest[Vector::width];
    for (std::size_t i = 0; i < Vector::width; ++i) {
        const std::size_t at = i * how.bits;
        std::uint64_t word;
        __builtin_memcpy(&word, low + at / 8, sizeof word);
        rest[i] = static_cast<std::uint32_t>(word >> (at % 8) & mask);
    }
    return halves<Places>([&](int i) {
        return (high.half[i] - number.half[i]) << how.bits | lanes<Words>(rest + 4 * i);
    });
}

// Returns a bit for each lane that is not above the lane before it, as signed numbers.
inline std::uint32_t falls(Places before, Places now) {
    std::int32_t lane[1 + Vector::width];
    lane[0] = static_cast<std::int32_t>(before.half[1][3]);
    __builtin_memcpy(lane + 1, &now, sizeof now);
    return mask_of(ints_of(now.half[0]) <= lanes<Ints>(lane),
                   ints_of(now.half[1]) <= lanes<Ints>(lane + 4));
}

}  // namespace
}  // namespace gradwire

#include "vector_halves.inl"
