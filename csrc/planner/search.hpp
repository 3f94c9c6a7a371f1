// Chooses an option for every job so that the step is short.
#pragma once

#include "usage.hpp"

namespace gradwire {

struct Found {
    double seconds;      // the end of the last job or of backward
    double bound;        // no choice ends sooner
    double evaluations;  // whole steps simulated; parts count as fractions
};

struct Effort {
    double limit;          // of evaluations
    std::uint64_t seed;    // of the neighbourhoods
    std::int32_t rounds;   // of the lower bound
};

// choice: (count,), the option of each job, from 0; the given choice is one of the starts.
Found search(const Jobs& jobs, const Machine& machine, const Effort& effort, std::int32_t* choice,
             Interrupt& interrupt);

// Finds the best of all choices by trying them: jobs begin one by one, and what cannot beat the
// best so far is skipped. choice: a start, and the result. evaluations: how many jobs were begun.
// Takes half a kilobyte of stack for each job.
Found exhaust(const Jobs& jobs, const Machine& machine, std::int32_t* choice,
              Interrupt& interrupt);

}  // namespace gradwire
