// Assigns paths one by one, each the least loaded; the face is gradwire/network/least_loaded.py.
#pragma once

#include "../interrupt.hpp"
#include "paths.hpp"

namespace gradwire {

// Pieces between leaves, in order; amounts in bytes or fractions of bytes.
struct Pieces {
    std::size_t n;
    const std::int64_t* source;
    const std::int64_t* target;
    const std::int64_t* amount;
};

// Gives every piece the path whose slowest link finishes first, and adds the piece to `load`, which
// has a number per link. Ties go to the smaller sum over links, then to the next after a random
// one. Paths of rate 0 are not taken; every piece must have another.
void least_loaded(const Pieces& pieces, const Tiers& tiers, std::uint64_t seed, double* load,
                  std::int64_t* path, Interrupt& interrupt);

// The same, if switches see only their own links: first the leaf chooses an uplink, then the switch
// above it a core.
void least_loaded_locally(const Pieces& pieces, const Tiers& tiers, std::uint64_t seed,
                          double* load, std::int64_t* path, Interrupt& interrupt);

}  // namespace gradwire
