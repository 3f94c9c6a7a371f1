// The loads that hashing gives, sampled many times; the face is gradwire/network/samples.py.
#pragma once

#include "../interrupt.hpp"
#include "paths.hpp"

namespace gradwire {

// Flows between leaves, each in `parts` equal parts. A part takes one of `counts` working paths:
// those in the table for its pair of leaves or, without a table, the first `counts`.
struct HashedFlows {
    std::size_t n;
    const std::int64_t* source;
    const std::int64_t* target;
    const std::int64_t* amount;  // of a part
    std::int64_t parts;
    const std::int64_t* counts;
    const std::int64_t* pair;
    const std::int64_t* paths;  // [pairs, most], or null
    std::int64_t most;
};

// For seeds from `seed` on, computes amount / rate of the slowest link when every part takes a
// random path.
void slowest_links(const HashedFlows& flows, const Tiers& tiers, const Ports& ports,
                   std::uint64_t seed, std::size_t samples, double* longest,
                   Interrupt& interrupt);

}  // namespace gradwire
