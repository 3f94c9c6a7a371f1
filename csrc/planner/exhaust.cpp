#include <limits>

#include "search.hpp"

namespace gradwire {
namespace {

class Exhaust {
  public:
    Exhaust(const Jobs& jobs, const Machine& machine, std::int32_t* choice, Interrupt& interrupt)
        : jobs_(jobs), interrupt_(interrupt), simulator_(jobs, machine), after_(seconds_after(jobs)),
          rest_(jobs, machine), best_(choice), own_(choice, choice + jobs.count) {
        const std::vector<Usage> usage = usages(jobs);
        Kept all{{}, {jobs.option, jobs.option + jobs.count + 1}};
        for (std::int32_t i = 0; i < jobs.option[jobs.count]; ++i) all.option.push_back(i);
        const std::vector<Usage> low = least(jobs, usage, all);
        rest_.sum(jobs.count - 1, [&low](std::int32_t job) { return low[job]; });
        seconds_ = run_all(simulator_, choice);
    }

    Found run() {
        visit(simulator_.start());
        return {seconds_, seconds_, begun_};
    }

  private:
    void visit(State state) {
        const int lane = simulator_.advance(state);
        if (lane < 0) {
            if (state.now >= seconds_ * (1.0 - 1e-12)) return;
            seconds_ = state.now;
            std::copy(own_.begin(), own_.end(), best_);
            return;
        }
        const std::int32_t job = state.runners[lane].job;
        for (std::int32_t i = jobs_.option[job]; i < jobs_.option[job + 1]; ++i) {
            State next = state;
            simulator_.begin(next, lane, i);
            begun_ += 1.0;
            interrupt_(100);
            if (rest_.least_end(simulator_, after_, next) >= seconds_) continue;
            own_[static_cast<std::size_t>(job)] = i - jobs_.option[job];
            visit(next);
        }
    }

    const Jobs& jobs_;
    Interrupt& interrupt_;
    Simulator simulator_;
    std::vector<double> after_;
    Rest rest_;
    std::int32_t* best_;
    std::vector<std::int32_t> own_;
    double seconds_ = 0.0, begun_ = 0.0;
};

}  // namespace

Found exhaust(const Jobs& jobs, const Machine& machine, std::int32_t* choice,
              Interrupt& interrupt) {
    return Exhaust(jobs, machine, choice, interrupt).run();
}

}  // namespace gradwire
