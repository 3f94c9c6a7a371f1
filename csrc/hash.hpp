// Numbers that look random, from numbers that do not.
#pragma once

#include <cstdint>

namespace gradwire {

// MurmurHash3's 32-bit finalizer (Appleby 2011).
inline std::uint32_t mixed(std::uint32_t h) {
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

// One of n, as the hash says.
inline std::uint32_t drawn(std::uint32_t index, std::uint32_t seed, std::uint64_t n) {
    return static_cast<std::uint32_t>(mixed(index ^ seed) * n >> 32);
}

}  // namespace gradwire
