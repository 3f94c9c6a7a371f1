// A time below which no choice of options comes: it certifies what a search found.
#pragma once

#include "usage.hpp"

namespace gradwire {

// Cuts, each a true lower bound for every choice, are weighed so that the best choice for their
// weighted sum is as slow as can be (the Lagrangian dual; weights by exponentiated gradients).
// goal: a time that was reached; stops where the bound comes to it. kept: of all options.
double lower_bound(const Jobs& jobs, const Machine& machine, const std::vector<Usage>& usage,
                   const Kept& kept, std::int32_t rounds, double goal);

}  // namespace gradwire
