// The ones of a byte, looked up.
#pragma once

#include <cstdint>

namespace gradwire {
namespace {

struct Ones {
    std::uint8_t at[256][8];  // their positions
    std::uint8_t count[256];
};
constexpr Ones make_ones() {
    Ones out{};
    for (unsigned byte = 0; byte < 256; ++byte)
        for (std::uint8_t i = 0; i < 8; ++i)
            if ((byte >> i & 1u) != 0) out.at[byte][out.count[byte]++] = i;
    return out;
}
constexpr Ones ones_of = make_ones();

}  // namespace
}  // namespace gradwire
