// Eight floats as an array: any compiler, any machine.
#pragma once

#include "half.hpp"

namespace gradwire {
namespace {

struct Vector {
    static constexpr std::size_t width = 8;
    float lane[width];
};

template <class Operation>
inline Vector each(Operation operation) {
    Vector out;
    for (std::size_t i = 0; i < Vector::width; ++i) out.lane[i] = operation(i);
    return out;
}

template <class T>
inline Vector load(const T* from) {
    return each([&](std::size_t i) { return widen(from[i]); });
}

template <class T>
inline void store(T* to, Vector a) {
    for (std::size_t i = 0; i < Vector::width; ++i) narrow(a.lane[i], to + i);
}

// fp16 takes branches in each lane. Called, not copied to every place, it is as fast but for
// selection, a third slower, and this version compiles in three quarters of the time.
[[gnu::noinline]] Vector load(const fp16* from) {
    return each([&](std::size_t i) { return widen(from[i]); });
}
[[gnu::noinline]] void store(fp16* to, Vector a) {
    for (std::size_t i = 0; i < Vector::width; ++i) narrow(a.lane[i], to + i);
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
    return each([&](std::size_t) { return a; });
}
inline Vector add(Vector a, Vector b) {
    return each([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
}
inline Vector sub(Vector a, Vector b) {
    return each([&](std::size_t i) { return a.lane[i] - b.lane[i]; });
}
inline Vector mul(Vector a, Vector b) {
    return each([&](std::size_t i) { return a.lane[i] * b.lane[i]; });
}
inline Vector div(Vector a, Vector b) {
    return each([&](std::size_t i) { return a.lane[i] / b.lane[i]; });
}
inline Vector bit_or(Vector a, Vector b) {
    return each([&](std::size_t i) { return float_of(bits_of(a.lane[i]) | bits_of(b.lane[i])); });
}

struct Bound {
    std::uint32_t bits;
};
inline Bound bound(std::uint32_t bits) { return {bits}; }

// One bit per lane: magnitude at or above the bound.
inline std::uint32_t reaches(Vector a, Bound least) {
    std::uint32_t mask = 0;
    for (std::size_t i = 0; i < Vector::width; ++i) {
        const bool reached = (bits_of(a.lane[i]) & magnitude_mask) >= least.bits;
        mask |= reached ? 1u << i : 0u;
    }
    return mask;
}

// The larger of two magnitudes, compared as integers, so that NaN is the largest; a is one.
inline Vector larger(Vector a, Vector b) {
    return each([&](std::size_t i) {
        const std::uint32_t magnitude = bits_of(b.lane[i]) & magnitude_mask;
        return magnitude > bits_of(a.lane[i]) ? float_of(magnitude) : a.lane[i];
    });
}

// One bit per lane: its sign bit.
inline std::uint32_t signs(Vector a) {
    std::uint32_t mask = 0;
    for (std::size_t i = 0; i < Vector::width; ++i) mask |= bits_of(a.lane[i]) >> 31 << i;
    return mask;
}

// One bit per lane: whether it is neither 0 nor -0.
inline std::uint32_t nonzero(Vector a) {
    std::uint32_t mask = 0;
    for (std::size_t i = 0; i < Vector::width; ++i) {
        const bool differs = (bits_of(a.lane[i]) & magnitude_mask) != 0;
        mask |= differs ? 1u << i : 0u;
    }
    return mask;
}

// a where the mask is set, b elsewhere.
inline Vector choose(std::uint32_t mask, Vector a, Vector b) {
    return each([&](std::size_t i) { return (mask >> i & 1u) != 0 ? a.lane[i] : b.lane[i]; });
}

// One of two values per lane, by its bit among many.
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

// The sign turned where the mask is set.
inline Vector negated(std::uint32_t mask, Vector v) {
    return each([&](std::size_t i) {
        return float_of(bits_of(v.lane[i]) ^ (mask >> i & 1u) << 31);
    });
}

// Signed bytes as floats.
inline Vector from_signed(const std::uint8_t* from) {
    return each([&](std::size_t i) { return static_cast<float>(static_cast<std::int8_t>(from[i])); });
}

// The nearest integers (ties to even) as signed bytes.
inline void store_signed(std::uint8_t* to, Vector v) {
    for (std::size_t i = 0; i < Vector::width; ++i)
        to[i] = static_cast<std::uint8_t>(nearest(v.lane[i]));
}

// Floats with these exponents and no mantissa.
inline Vector from_exponents(const std::uint8_t* from) {
    return each([&](std::size_t i) { return float_of(std::uint32_t{from[i]} << 23); });
}

// Sign in bit 7, the rest moved up by `left` to the place it has in fp16.
inline Vector from_minifloat(const std::uint8_t* from, int left) {
    return each([&](std::size_t i) { return widen(as_half(from[i], left)); });
}

// Codes of up to eight bits, one per lane, and what their lowest four bits mean.
struct Small {
    std::uint32_t lane[Vector::width];
};
struct Table {
    float meaning[16];
};
inline Small small(const std::uint8_t* from) {
    Small out;
    for (std::size_t i = 0; i < Vector::width; ++i) out.lane[i] = from[i];
    return out;
}
inline Small shifted(Small s, int right) {
    for (std::uint32_t& lane : s.lane) lane >>= right;
    return s;
}
inline Table table(const float* meaning, float scale) {
    Table out;
    for (std::size_t i = 0; i < 16; ++i) out.meaning[i] = meaning[i] * scale;
    return out;
}
inline Vector lookup(Table t, Small s) {
    return each([&](std::size_t i) { return t.meaning[s.lane[i] & 15u]; });
}

// 16 fractions of 65536.
struct Fractions {
    std::uint16_t lane[2 * Vector::width];
};
inline Fractions fractions(const std::uint8_t* from) {  // of 256, from bytes
    Fractions out;
    for (std::size_t i = 0; i < 2 * Vector::width; ++i)
        out.lane[i] = static_cast<std::uint16_t>(from[i] << 8);
    return out;
}

// The whole part of three times each, two in a lane: one in the lower half, one in the upper.
inline Small thirds(Fractions f) {
    Small out;
    for (std::size_t i = 0; i < Vector::width; ++i)
        out.lane[i] = 3u * f.lane[2 * i] >> 16 | 3u * f.lane[2 * i + 1] >> 16 << 16;
    return out;
}

// Three times each, without the whole part.
inline Fractions tripled(Fractions f) {
    for (std::uint16_t& lane : f.lane) lane = static_cast<std::uint16_t>(3u * lane);
    return f;
}

// Whether any lane of what was looked at reaches a bound; lane by lane, which compilers vectorise.
struct Seen {
    std::int32_t lane[Vector::width] = {};
    void look(Vector a, Bound least) {
        for (std::size_t i = 0; i < Vector::width; ++i) {
            const auto magnitude = static_cast<std::int32_t>(bits_of(a.lane[i]) & magnitude_mask);
            lane[i] |= magnitude >= static_cast<std::int32_t>(least.bits) ? -1 : 0;
        }
    }
    bool any() const {
        std::int32_t all = 0;
        for (const std::int32_t one : lane) all |= one;
        return all != 0;
    }
};

inline std::size_t compress(Vector a, std::uint32_t mask, std::uint32_t base, std::uint32_t* bits,
                            std::uint32_t* index) {
    std::size_t count = 0;
    for (; mask != 0; mask &= mask - 1) {
        const auto i = static_cast<std::uint32_t>(__builtin_ctz(mask));
        bits[count] = bits_of(a.lane[i]);
        index[count++] = base + i;
    }
    return count;
}

// Places: numbers below 2^32, one per lane.
struct Places {
    std::uint32_t lane[Vector::width];
};
inline Places load(const std::uint32_t* from) {
    Places out;
    for (std::size_t i = 0; i < Vector::width; ++i) out.lane[i] = from[i];
    return out;
}
inline void store(std::uint32_t* to, Places p) {
    for (std::size_t i = 0; i < Vector::width; ++i) to[i] = p.lane[i];
}
inline Places count_from(std::uint32_t first) {
    Places out;
    for (std::uint32_t i = 0; i < Vector::width; ++i) out.lane[i] = first + i;
    return out;
}

// The lanes of the mask, one after the other; how many.
inline std::size_t keep(Places p, std::uint32_t mask, std::uint32_t* to) {
    std::uint32_t lane[Vector::width];
    store(lane, p);
    std::size_t count = 0;
    for (; mask != 0; mask &= mask - 1) to[count++] = lane[__builtin_ctz(mask)];
    return count;
}

// Where the bits of a word are set, counted from `base`, into up to 64 + width places; how many.
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

// One bit per byte that is not 0, of 64.
inline std::uint64_t marked(const std::uint8_t* bytes) {
    std::uint64_t out = 0;
    for (unsigned i = 0; i < 64; ++i) out |= std::uint64_t{bytes[i] != 0} << i;
    return out;
}

// How numbers of `bits` < 32 bits each, one after the other, are spread over the lanes.
struct Spread {
    unsigned bits;
};
inline Spread spread_of(unsigned bits) { return {bits}; }

// (high - number) with the lower bits that 64 bytes hold behind it.
inline Places joined(Places high, Places number, const std::uint8_t* low, const Spread& how) {
    const std::uint64_t mask = (std::uint64_t{1} << how.bits) - 1;
    for (std::size_t i = 0; i < Vector::width; ++i) {
        const std::size_t at = i * how.bits;
        std::uint64_t word;
        std::memcpy(&word, low + at / 8, sizeof word);
        const auto rest = static_cast<std::uint32_t>(word >> (at % 8) & mask);
        high.lane[i] = ((high.lane[i] - number.lane[i]) << how.bits) | rest;
    }
    return high;
}

// One bit per lane that is not above the lane before it, as signed numbers.
inline std::uint32_t falls(Places before, Places now) {
    std::uint32_t mask = 0;
    std::uint32_t last = before.lane[Vector::width - 1];
    for (std::size_t i = 0; i < Vector::width; ++i) {
        const bool above = static_cast<std::int32_t>(now.lane[i]) > static_cast<std::int32_t>(last);
        mask |= above ? 0u : 1u << i;
        last = now.lane[i];
    }
    return mask;
}

}  // namespace
}  // namespace gradwire
