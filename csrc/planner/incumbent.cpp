#include "incumbent.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradwire {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

bool close(double a, double b) { return std::abs(a - b) <= 1e-12 * (std::abs(a) + std::abs(b)); }

}  // namespace

Incumbent::Incumbent(const Simulator& simulator, const std::vector<Usage>& usage)
    : simulator_(simulator), usage_(usage), after_(seconds_after(simulator.jobs)),
      choice_(static_cast<std::size_t>(simulator.jobs.count)), states_(choice_.size()),
      rest_(simulator.jobs, simulator.machine) {}

void Incumbent::adopt(const std::vector<std::int32_t>& choice) {
    choice_ = choice;
    sum(simulator_.jobs.count - 1);
    run(simulator_.start());
}

void Incumbent::change(std::int32_t job, std::int32_t option) {
    choice_[job] = option;
    sum(job);
    run(states_[job]);
}

void Incumbent::change(const std::vector<std::int32_t>& jobs,
                       const std::vector<std::int32_t>& options) {
    std::int32_t first = jobs.front(), last = first;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        choice_[jobs[i]] = options[i];
        last = std::max(last, jobs[i]);
        if (states_[jobs[i]].begun < states_[first].begun) first = jobs[i];
    }
    sum(last);
    run(states_[first]);
}

void Incumbent::sum(std::int32_t last) {
    rest_.sum(last, [this](std::int32_t job) -> const Usage& { return usage_[choice_[job]]; });
}

// Runs from a state on and records the state before each job begins, when the job's lane is ready
// for it.
void Incumbent::run(State state) {
    for (int lane; (lane = simulator_.advance(state)) >= 0;) {
        const std::int32_t job = state.runners[lane].job;
        states_[job] = state;
        simulator_.begin(state, lane, choice_[job]);
        begun_ += 1.0;
    }
    seconds_ = state.now;
}

double Incumbent::trial(std::int32_t job, std::int32_t option, double least) {
    State state = states_[job];
    const std::int32_t since = state.begun;
    int lane = job % simulator_.machine.lanes;
    double seconds = never;
    for (;;) {
        const std::int32_t own = state.runners[lane].job;
        simulator_.begin(state, lane, own == job ? option : choice_[own]);
        if (rest_.least_end(simulator_, after_, state) >= least) break;
        lane = simulator_.advance(state);
        if (lane < 0) {
            seconds = state.now < least ? state.now : never;
            break;
        }
        // If the state is as recorded again, the rest is as before.
        if (same(state, states_[state.runners[lane].job])) {
            seconds = seconds_ < least ? seconds_ : never;
            break;
        }
    }
    begun_ += state.begun - since;
    return seconds;
}

bool Incumbent::same(const State& state, const State& other) const {
    if (!close(state.now, other.now) || !close(state.done, other.done)) return false;
    for (int lane = 0; lane < simulator_.machine.lanes; ++lane) {
        const Runner &a = state.runners[lane], &b = other.runners[lane];
        if (a.job != b.job || a.stage != b.stage || a.end != b.end) return false;
        if (a.stage != a.end && !close(a.left, b.left)) return false;
    }
    return true;
}

}  // namespace gradwire
