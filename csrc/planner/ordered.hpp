// The model of the published planner: every lane is a queue that serves one stage at a time. The
// rule is in gradwire/planner/ordered.py; the twin in gradwire/kernels/torch/queues.py.
#pragma once

#include "timeline.hpp"

namespace gradwire {

// The end of the last job or of backward. choice: (jobs,). by_ready: whoever arrives first is
// served first, else the jobs' order rules. idle: (jobs,) seconds for which no link had anything to
// do, after some had, because the job was not there yet: not ready, or not encoded.
double ordered(const Jobs& jobs, const std::int32_t* choice, double backward, bool by_ready,
               double* idle);

}  // namespace gradwire
