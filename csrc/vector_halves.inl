// What is written over both halves, for all machines with vectors of four floats. Included after
// vector_halves.hpp and what plain.cpp and neon.cpp have of their own.

namespace gradwire {
namespace {

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
inline Vector bit_or(Vector a, Vector b) {
    return halves([&](int i) { return floats_of(words_of(a.half[i]) | words_of(b.half[i])); });
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

inline Small small(const std::uint8_t* from) { return eight(from); }
inline Small shifted(Small s, int right) {
    return halves<Small>([&](int i) { return s.half[i] >> right; });
}

inline Fractions fractions(const std::uint8_t* from) {  // from bytes, multiples of 1 / 256
    return halves<Fractions>([&](int i) {
        return __builtin_convertvector(lanes<Bytes>(from + 8 * i), Shorts) << 8;
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

// sum[place[i]] += term[i] for four different places.
inline void add_four(float* sum, const std::uint32_t* place, const float* term) {
    for (std::size_t i = 0; i < 4; ++i) sum[place[i]] += term[i];
}

}  // namespace
}  // namespace gradwire
