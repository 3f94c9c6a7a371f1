// One path after the other, each where least is: gradwire/network/least_loaded.py has the face.
#pragma once

#include "../interrupt.hpp"
#include "paths.hpp"

namespace gradwire {

// Pieces between leaves, in their order; amounts in bytes or parts of them.
struct Pieces {
    std::size_t n;
    const std::int64_t* source;
    const std::int64_t* target;
    const std::int64_t* amount;
};

// Gives every piece the path whose slowest link is done first, and adds it to `load`, of every
// link. Ties: the shorter sum, then the next after a drawn one. Paths of rate 0 are not taken;
// every piece has another.
void least_loaded(const Pieces& pieces, const Tiers& tiers, std::uint64_t seed, double* load,
                  std::int64_t* path, Interrupt& interrupt);

// The same, where switches see their own links only: first the leaf chooses an uplink, then the
// switch above it a core.
void least_loaded_locally(const Pieces& pieces, const Tiers& tiers, std::uint64_t seed,
                          double* load, std::int64_t* path, Interrupt& interrupt);

}  // namespace gradwire
