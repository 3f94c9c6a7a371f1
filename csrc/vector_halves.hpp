// Eight floats as two vectors of four, in the vector extension of GCC and Clang: types, and moves
// between memory and lanes. vector_plain.hpp and vector_neon.hpp add what has a better form on some
// machine, and vector_halves.inl all that is written over both.
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

constexpr bool has_short_window = false;

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

inline Places count_from(std::uint32_t first) {
    return {{Words{0, 1, 2, 3} + first, Words{4, 5, 6, 7} + first}};
}

// Codes of up to eight bits, one per lane.
using Small = Places;

// 16 fractions, as multiples of 1 / 65536, two in a lane: one in the lower half, one in the upper.
struct Fractions {
    Shorts half[2];
};

}  // namespace
}  // namespace gradwire
