// What each failure costs a plan that routes around it; the face is gradwire/network/failures.py.
#pragma once

#include "least_loaded.hpp"

namespace gradwire {

// Links that fail together: set i is links[start[i] .. start[i + 1]).
struct FailureSets {
    std::size_t n;
    const std::int64_t* start;
    const std::int64_t* links;
};

// For each set, computes amount / rate of the slowest link, or port of a host, after pieces whose path fails have moved
// to the least loaded paths, while all others stay; infinity if one has no other path. moved: how
// many moved.
void sweep_failures(const Pieces& pieces, const std::int64_t* path, const Tiers& tiers,
                    const Ports& ports, const FailureSets& sets, std::uint64_t seed,
                    double* slowest, std::int64_t* moved, Interrupt& interrupt);

}  // namespace gradwire
