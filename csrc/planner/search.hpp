// The choice of an option for every job that makes a step short.
#pragma once

#include "usage.hpp"

namespace gradwire {

struct Found {
    double seconds;      // the end of the last job or of backward
    double bound;        // no choice ends sooner
    double evaluations;  // how many whole steps were simulated; parts count as such
};

struct Effort {
    double limit;          // of evaluations
    std::uint64_t seed;    // of the neighbourhoods
    std::int32_t rounds;   // of the lower bound
};

// choice: (count,), an option of each job from 0; the given one is one of those to start from.
Found search(const Jobs& jobs, const Machine& machine, const Effort& effort, std::int32_t* choice,
             Interrupt& interrupt);

// The best of all choices, by trying them: jobs begin one by one and what cannot beat the best so
// far is left out. choice: a start, and the result. evaluations: how many jobs were begun. Takes
// half a kilobyte of the stack for each job.
Found exhaust(const Jobs& jobs, const Machine& machine, std::int32_t* choice,
              Interrupt& interrupt);

}  // namespace gradwire
