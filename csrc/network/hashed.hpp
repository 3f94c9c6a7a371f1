// What hashes do to loads, many times over: gradwire/network/samples.py has the face.
#pragma once

#include "../interrupt.hpp"
#include "paths.hpp"

namespace gradwire {

// Flows between leaves, each in `parts` equal parts, by one of `counts` paths that work: those of
// its pair of leaves, or, where there is no table, the first.
struct Hashed {
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

// For seeds from `seed` on: amount / rate of the slowest link, every part on a drawn path.
void slowest_links(const Hashed& flows, const Tiers& tiers, std::uint64_t seed,
                   std::size_t samples, double* longest, Interrupt& interrupt);

}  // namespace gradwire
