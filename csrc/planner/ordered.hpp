// The published planner's model: every lane is a queue that serves one stage at a time. The rule is
// in gradwire/planner/ordered.py; the twin is in gradwire/kernels/torch/queues.py.
#pragma once

#include "timeline.hpp"

namespace gradwire {

// Returns the end of the last job or of backward. choice: (jobs,). by_ready: the first job to
// arrive is served first; otherwise the jobs' order decides. idle: (jobs,) seconds for which all
// links were idle, after one was used, because the job was not ready or not encoded yet.
double ordered(const Jobs& jobs, const std::int32_t* choice, double backward, bool by_ready,
               double* idle);

}  // namespace gradwire
