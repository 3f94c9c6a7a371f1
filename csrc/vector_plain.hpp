// Eight floats as two vectors of four, in the vector extension of GCC and Clang, for any machine.
#pragma once

#include "half.hpp"

namespace gradwire {
namespace {

using Floats = float __attribute__((vector_size(16)));
using Ints = std::int32_t __attribute__((vector_size(16)));
using Words = std::uint32_t __attribute__((vector_size(16)));

struct Vector {
    static constexpr std::size_t width = 8;
    Floats half[2];
};

inline Words words_of(Floats a) { return reinterpret_cast<Words>(a); }
inline Ints ints_of(Words a) { return reinterpret_cast<Ints>(a); }
inline Floats floats_of(Words a) { return reinterpret_cast<Floats>(a); }
inline Words magnitudes(Floats a) { return words_of(a) & magnitude_mask; }

// a where all bits of `where` are set, b where none is.
inline Words select(Ints where, Words a, Words b) {
    const auto set = reinterpret_cast<Words>(where);
    return (a & set) | (b & ~set);
}

// Makes both halves of a vector, or of a type like it, with one function.
template <class Out = Vector, class Operation>
inline Out halves(Operation operation) {
    return {{operation(0), operation(1)}};
}

template <class Lanes, class T>
inline Lanes lanes(const T* from) {
    Lanes out;
    __builtin_memcpy(&out, from, sizeof out);
    return out;
}

// Numbers below 2^32, one per lane.
struct Places {
    Words half[2];
};
inline Places load(const std::uint32_t* from) {
    return {{lanes<Words>(from), lanes<Words>(from + 4)}};
}
inline void store(std::uint32_t* to, Places p) {
    for (int i = 0; i < 2; ++i) __builtin_memcpy(to + 4 * i, &p.half[i], sizeof p.half[i]);
}

// Vectors wider than any register of most machines; compilers turn them into two unpackings.
using Shorts = std::uint16_t __attribute__((vector_size(16)));
using Bytes = std::uint8_t __attribute__((vector_size(8)));
using Wide = std::uint32_t __attribute__((vector_size(32)));

inline Places eight(Shorts from) {
    const Wide out = __builtin_convertvector(from, Wide);
    return load(reinterpret_cast<const std::uint32_t*>(&out));
}
inline Places eight(const std::uint16_t* from) { return eight(lanes<Shorts>(from)); }
inline Places eight(const std::uint8_t* from) {
    return eight(__builtin_convertvector(lanes<Bytes>(from), Shorts));
}
inline void store(std::uint16_t* to, Places p) {
    Wide wide;
    __builtin_memcpy(&wide, &p, sizeof wide);
    const Shorts out = __builtin_convertvector(wide, Shorts);
    __builtin_memcpy(to, &out, sizeof out);
}

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
inline Words narrowed(Floats a, const bf16*) {
    const Ints nan = ints_of(magnitudes(a)) > static_cast<std::int32_t>(infinity_bits);
    const Words bits = words_of(a);
    return select(nan, Words{} + 0x7fc0u, (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline Vector load(const float* from) {
    return halves([&](int i) { return lanes<Floats>(from + 4 * i); });
}
inline Vector load(const bf16* from) {
    const Places p = eight(&from->bits);
    return halves([&](int i) { return floats_of(p.half[i] << 16); });
}
inline Vector load(const fp16* from) {
    const Places p = eight(&from->bits);
    return halves([&](int i) { return widened(p.half[i]); });
}
inline void store(float* to, Vector a) {
    for (int i = 0; i < 2; ++i) __builtin_memcpy(to + 4 * i, &a.half[i], sizeof a.half[i]);
}
template <class T>
inline void store(T* to, Vector a) {
    store(&to->bits, halves<Places>([&](int i) { return narrowed(a.half[i], to); }));
}
template <class T>
inline void stream(T* to, Vector a) {
    store(to, a);
}
inline void stream_line(std::uint8_t* to, const std::uint8_t* from) {
    __builtin_memcpy(to, from, 64);
}
inline void fence() {}

inline Vector fill(float a) {
    return halves([&](int) { return Floats{a, a, a, a}; });
}
inline Vector add(Vector a, Vector b) {
    return halves([&](int i) { return a.half[i] + b.half[i]; });
}
inline Vector sub(Vector a, Vector b) {
    return halves([&](int i) { return a.half[i] - b.half[i]; });
}
inline Vector mul(Vector a, Vector b) {
    return halves([&](int i) { return a.half[i] * b.half[i]; });
}
inline Vector div(Vector a, Vector b) {
    return halves([&](int i) { return a.half[i] / b.half[i]; });
}
inline Vector square_root(Vector a) {
    return halves([&](int i) {
        const Floats x = a.half[i];
        return Floats{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
                      __builtin_sqrtf(x[3])};
    });
}
inline Vector bit_or(Vector a, Vector b) {
    return halves([&](int i) { return floats_of(words_of(a.half[i]) | words_of(b.half[i])); });
}

// Returns one bit per lane that is set in two halves.
inline std::uint32_t mask_of(Ints low, Ints high) {
    const Ints bits = (low & Ints{1, 2, 4, 8}) | (high & Ints{16, 32, 64, 128});
    std::uint64_t pairs[2];
    __builtin_memcpy(pairs, &bits, sizeof bits);
    const std::uint64_t pair = pairs[0] | pairs[1];
    return static_cast<std::uint32_t>(pair | pair >> 32);
}

// The lanes of one half that the mask sets.
inline Ints set_in(std::uint32_t mask, int half) {
    const Ints lane = Ints{1, 2, 4, 8} << (4 * half);
    return (lane & static_cast<std::int32_t>(mask)) == lane;
}

struct Bound {
    std::int32_t bits;
};  // magnitudes are below 2^31, so a signed comparison works
inline Bound bound(std::uint32_t bits) { return {static_cast<std::int32_t>(bits)}; }

// One bit per lane: magnitude at or above the bound.
inline std::uint32_t reaches(Vector a, Bound least) {
    return mask_of(ints_of(magnitudes(a.half[0])) >= least.bits,
                   ints_of(magnitudes(a.half[1])) >= least.bits);
}

// Returns the larger magnitude, compared as integers, so that NaN is the largest; a must be one
// already.
inline Vector larger(Vector a, Vector b) {
    return halves([&](int i) {
        const Words one = words_of(a.half[i]), other = magnitudes(b.half[i]);
        return floats_of(select(ints_of(other) > ints_of(one), other, one));
    });
}

// One bit per lane: its sign bit.
inline std::uint32_t signs(Vector a) {
    return mask_of(ints_of(words_of(a.half[0])) < 0, ints_of(words_of(a.half[1])) < 0);
}

// One bit per lane: whether it is neither 0 nor -0.
inline std::uint32_t nonzero(Vector a) {
    return mask_of(magnitudes(a.half[0]) != 0u, magnitudes(a.half[1]) != 0u);
}

// One bit per lane: whether it is below zero, subnormal numbers too; -0 is not.
inline std::uint32_t negatives(Vector a) {
    return mask_of(ints_of(words_of(a.half[0]) ^ ~magnitude_mask) > 0,
                   ints_of(words_of(a.half[1]) ^ ~magnitude_mask) > 0);
}

// a where the mask is set, b elsewhere.
inline Vector choose(std::uint32_t mask, Vector a, Vector b) {
    return halves([&](int i) {
        return floats_of(select(set_in(mask, i), words_of(a.half[i]), words_of(b.half[i])));
    });
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
    return halves([&](int i) {
        const auto turned = reinterpret_cast<Words>(set_in(mask, i)) & 0x80000000u;
        return floats_of(words_of(v.half[i]) ^ turned);
    });
}

// Signed bytes as floats.
inline Vector from_signed(const std::uint8_t* from) {
    const Places p = eight(from);
    return halves([&](int i) {
        return __builtin_convertvector(ints_of(p.half[i] << 24) >> 24, Floats);
    });
}

// Stores the nearest integers (ties to even) as signed bytes.
inline void store_signed(std::uint8_t* to, Vector v) {
    for (std::size_t i = 0; i < Vector::width; ++i)
        to[i] = static_cast<std::uint8_t>(nearest(v.half[i / 4][i % 4]));
}

// Floats with these exponents and no mantissa.
inline Vector from_exponents(const std::uint8_t* from) {
    const Places p = eight(from);
    return halves([&](int i) { return floats_of(p.half[i] << 23); });
}

// Floats from codes with the sign in bit 7; the rest is moved up by `left` to its position in fp16.
inline Vector from_minifloat(const std::uint8_t* from, int left) {
    const Places p = eight(from);
    return halves([&](int i) {
        return widened((p.half[i] & 0x80u) << 8 | (p.half[i] & 0x7fu) << left);
    });
}

// Codes of up to eight bits, one per lane, and what their lowest four bits mean.
using Small = Places;
struct Table {
    float meaning[16];
};
inline Small small(const std::uint8_t* from) { return eight(from); }
inline Small shifted(Small s, int right) {
    return halves<Small>([&](int i) { return s.half[i] >> right; });
}
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

// 16 fractions, as multiples of 1 / 65536, two in a lane: one in the lower half, one in the upper.
struct Fractions {
    Shorts half[2];
};
inline Fractions fractions(const std::uint8_t* from) {  // from bytes, multiples of 1 / 256
    return halves<Fractions>([&](int i) {
        return __builtin_convertvector(lanes<Bytes>(from + 8 * i), Shorts) << 8;
    });
}

// The integer part of three times each.
inline Small thirds(Fractions f) {
    return halves<Small>([&](int i) {
        const Words both = reinterpret_cast<Words>(f.half[i]);
        const Words low = both & 0xffffu, high = both >> 16;
        return (low + low + low) >> 16 | ((high + high + high) & 0xffff0000u);
    });
}

// Three times each, without the integer part.
inline Fractions tripled(Fractions f) {
    return halves<Fractions>([&](int i) { return f.half[i] + f.half[i] + f.half[i]; });
}

// Remembers whether any lane that it has seen reaches a bound.
struct Seen {
    Ints lanes = {};
    void look(Vector a, Bound least) {
        lanes |= ints_of(magnitudes(a.half[0])) >= least.bits;
        lanes |= ints_of(magnitudes(a.half[1])) >= least.bits;
    }
    bool any() const { return mask_of(lanes, lanes) != 0; }
};

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

inline Places count_from(std::uint32_t first) {
    return {{Words{0, 1, 2, 3} + first, Words{4, 5, 6, 7} + first}};
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

// sum[place[i]] += term[i] for four different places.
inline void add_four(float* sum, const std::uint32_t* place, const float* term) {
    for (std::size_t i = 0; i < 4; ++i) sum[place[i]] += term[i];
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
