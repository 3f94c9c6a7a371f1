// The passes over memory, written over a Vector. Included once by plain.cpp, avx2.cpp and
// avx512.cpp, after the header with their Vector and with GRADWIRE_PASSES set to the name of their
// table.
//
// Everything is in the unnamed namespace and uses nothing of the standard library that could be
// emitted as a shared symbol: code for AVX-512 must not be linked into the plain version.

namespace gradwire {
namespace {

constexpr std::size_t W = Vector::width;
constexpr std::size_t alignment = 64;

// Prefetches more than a page ahead: hardware prefetching stops at the end of a page.
template <class T>
inline void fetch_far(const T* x, std::size_t n) {
    constexpr std::size_t line = 64 / sizeof(T);
    constexpr std::size_t ahead = 16384 / sizeof(T);
    for (std::size_t i = 0; i < n; i += line) __builtin_prefetch(x + ahead + i);
}

inline Bound finite_bound() { return bound(infinity_bits); }

template <class T>
inline Vector load_some(const T* from, std::size_t count) {
    if (count == W) return load(from);
    T last[W] = {};
    __builtin_memcpy(last, from, count * sizeof(T));
    return load(last);
}

}  // namespace
}  // namespace gradwire

// clang-format off: in this order
#include "passes/scan.inl"
#include "passes/update.inl"
#include "passes/adam.inl"
#include "passes/moves.inl"
// clang-format on

namespace gradwire {

extern const Passes GRADWIRE_PASSES = {
    update,   undo,   scan,          count,       is_finite,    cast,
    add_into, divide, stream_update, stream_read, stream_halve, adam, undo_adam};

}  // namespace gradwire
