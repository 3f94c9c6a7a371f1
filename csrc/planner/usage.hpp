// What an option needs of each resource, and which options others make superfluous.
#pragma once

#include <vector>

#include "../interrupt.hpp"
#include "timeline.hpp"

namespace gradwire {

struct Usage {
    double on[resources];  // seconds
    double total;          // of all its stages

    Usage& operator+=(const Usage& other);
};

std::vector<Usage> usages(const Jobs& jobs);

// For each stage, the seconds of its option's later stages.
std::vector<double> seconds_after(const Jobs& jobs);

// Lists of options, one for each job: option[begin[job]] ... option[begin[job + 1] - 1].
struct Kept {
    std::vector<std::int32_t> option, begin;
};

// Drops an option if another of the job needs no more of every resource and of LATENCY; the first
// of equals stays. Nothing is lost with one conductor lane and processors for all; with more lanes,
// order and sharing matter and the rule is a heuristic.
Kept undominated(const Jobs& jobs, const std::vector<Usage>& usage, Interrupt& interrupt);

// The least that a job's kept options need of each resource, taken one by one.
std::vector<Usage> least(const Jobs& jobs, const std::vector<Usage>& usage, const Kept& kept);

// The usage of a job and of all that come after it on its conductor lane; (count + lanes,).
class Rest {
  public:
    Rest(const Jobs& jobs, const Machine& machine)
        : count_(jobs.count), lanes_(machine.lanes),
          sums_(static_cast<std::size_t>(jobs.count + machine.lanes)) {}

    // of: job -> Usage. The sums of jobs after `last` stay.
    template <class Of>
    void sum(std::int32_t last, Of of) {
        for (std::int32_t job = last; job >= 0; --job) {
            Usage& sum = sums_[static_cast<std::size_t>(job)];
            sum = sums_[static_cast<std::size_t>(job + lanes_)];
            sum += of(job);
        }
    }

    // A lower bound on the end of any run that continues from the state; after: from seconds_after.
    double least_end(const Simulator& simulator, const std::vector<double>& after,
                     const State& state) const;

  private:
    std::int32_t count_, lanes_;
    std::vector<Usage> sums_;
};

}  // namespace gradwire
