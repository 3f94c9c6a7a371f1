// What an option asks of each resource, and which options others make superfluous.
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

// Seconds of the option's stages after each stage.
std::vector<double> seconds_after(const Jobs& jobs);

// Lists of options, one list a job: option[begin[job]] ... option[begin[job + 1] - 1].
struct Kept {
    std::vector<std::int32_t> option, begin;
};

// Without the options that another asks as little or less than, of every resource and of LATENCY;
// the first of equals stays. Nothing is lost with one conductor lane and processors for all; with
// more, order and sharing matter and the rule is a heuristic.
Kept undominated(const Jobs& jobs, const std::vector<Usage>& usage, Interrupt& interrupt);

// The least that a job's kept options ask of each resource, one by one.
std::vector<Usage> least(const Jobs& jobs, const std::vector<Usage>& usage, const Kept& kept);

// Usage of a job and of all that come after it on its lane of the conductor; (count + lanes,).
class Rest {
  public:
    Rest(const Jobs& jobs, const Machine& machine)
        : count_(jobs.count), lanes_(machine.lanes),
          sums_(static_cast<std::size_t>(jobs.count + machine.lanes)) {}

    // of: job -> Usage. Jobs after `last` are as they were.
    template <class Of>
    void sum(std::int32_t last, Of of) {
        for (std::int32_t job = last; job >= 0; --job) {
            Usage& sum = sums_[static_cast<std::size_t>(job)];
            sum = sums_[static_cast<std::size_t>(job + lanes_)];
            sum += of(job);
        }
    }

    // No run that goes on from the state ends sooner; after: of seconds_after.
    double least_end(const Simulator& simulator, const std::vector<double>& after,
                     const State& state) const;

  private:
    std::int32_t count_, lanes_;
    std::vector<Usage> sums_;
};

}  // namespace gradwire
