// Pseudo-random numbers, hashed from numbers that are not random.
#pragma once

#include <cstdint>

namespace gradwire {

// MurmurHash3's 32-bit finalizer (Appleby 2011).
inline std::uint32_t mixed(std::uint32_t h) {
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

// Returns a number below n, chosen by the hash.
inline std::uint32_t drawn(std::uint32_t index, std::uint32_t seed, std::uint64_t n) {
    return static_cast<std::uint32_t>(mixed(index ^ seed) * n >> 32);
}

}  // namespace gradwire
