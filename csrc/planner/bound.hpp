// A time below which no choice of options comes: it certifies what a search found.
#pragma once

#include <functional>

#include "usage.hpp"

namespace gradwire {

// Cuts, each a true lower bound for every choice, are weighed so that the best choice for their
// weighted sum is as slow as can be (the Lagrangian dual; weights by exponentiated gradients).
// kept: of all options. reach: is offered the best choice of each round, options among all, and
// says what time is reached so far; where the bound comes to it, the rest of the rounds is left.
using Reach = std::function<double(const std::vector<std::int32_t>&)>;
double lower_bound(const Jobs& jobs, const Machine& machine, const std::vector<Usage>& usage,
                   const Kept& kept, std::int32_t rounds, const Reach& reach);

}  // namespace gradwire
