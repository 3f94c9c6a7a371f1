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

template <class T>
inline void stream(T* to, Vector a) {
    store(to, a);
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

}  // namespace
}  // namespace gradwire
