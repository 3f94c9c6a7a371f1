// What each failure costs a plan that goes around it: gradwire/network/failures.py has the face.
#pragma once

#include "least_loaded.hpp"

namespace gradwire {

// Links that fail together: set i is links[start[i] .. start[i + 1]).
struct FailureSets {
    std::size_t n;
    const std::int64_t* start;
    const std::int64_t* links;
};

// For each set: amount / rate of the slowest link, once pieces whose path fails have gone where
// least is, all others staying; infinity if one has no other path. moved: how many went.
void sweep_failures(const Pieces& pieces, const std::int64_t* path, const Tiers& tiers,
                    const FailureSets& sets, std::uint64_t seed, double* slowest,
                    std::int64_t* moved, Interrupt& interrupt);

}  // namespace gradwire
