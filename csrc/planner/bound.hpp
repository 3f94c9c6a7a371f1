// A lower bound on the step's time over all choices of options, which certifies what a search
// found.
#pragma once

#include <functional>

#include "usage.hpp"

namespace gradwire {

// Weighs cuts, each a true lower bound for every choice, so that the best choice for their weighted
// sum is as slow as possible (the Lagrangian dual; weights by exponentiated gradients). kept: the
// options of each job that are considered. reach: receives the best choice of each round, options
// among all, and returns the least time reached so far; when the bound comes up to it, the
// remaining rounds are skipped.
using Reach = std::function<double(const std::vector<std::int32_t>&)>;
double lower_bound(const Jobs& jobs, const Machine& machine, const std::vector<Usage>& usage,
                   const Kept& kept, std::int32_t rounds, const Reach& reach);

}  // namespace gradwire
