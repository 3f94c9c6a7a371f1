// The best groups and options for one link. Sources: gradwire/planner/joint.py.
#pragma once

#include "../interrupt.hpp"
#include "lanes.hpp"

namespace gradwire {

struct LinkPlan {
    std::vector<std::int32_t> ends, options;  // of each group
    double seconds = infinity;
    double lower_bound = 0;  // no plan is faster
    std::size_t labels = 0;  // kept, in all
};

// tolerance: a plan may take so much longer than the best, as a part. max_labels: kept at one stop.
LinkPlan plan_link(const LinkProblem& problem, double tolerance, std::size_t max_labels,
                   Interrupt& interrupt);

}  // namespace gradwire
