#include "timeline.hpp"

#include <algorithm>
#include <limits>

namespace gradwire {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

Speed shared(double capacity, double demand) {
    return demand > capacity ? Speed{capacity / demand, demand / capacity} : Speed{1.0, 1.0};
}

struct Nothing {
    void begins(std::int32_t, double) const {}
    void ends(std::int32_t, double) const {}
    void backward_ends(double) const {}
};

struct Notes {
    Record& record;
    void begins(std::int32_t stage, double now) const { record.start[stage] = now; }
    void ends(std::int32_t stage, double now) const { record.end[stage] = now; }
    void backward_ends(double now) const { record.backward_end = now; }
};

}  // namespace

Simulator::Simulator(const Jobs& jobs, const Machine& machine) : jobs(jobs), machine(machine) {
    for (int n = 0; n <= machine.lanes; ++n) {
        for (Speed* share : {share_[compute], share_[node], share_[cross]})
            share[n] = shared(1.0, n);
        share_[workers][n] = shared(machine.workers, n);
        const double alone = 1.0 + machine.start_sharing * std::max(0, n - 1);
        const double beside = std::max(alone, machine.start_slowdown);
        starts_[0][n] = {1.0 / alone, alone};
        starts_[1][n] = {1.0 / beside, beside};
        const double busy = std::min<double>(n, machine.workers);
        for (int main = 0; main < 2; ++main)
            for (int links = 0; links < 3; ++links)
                for (int waiting = 0; waiting < 2; ++waiting)
                    processors_[main][n][links][waiting] =
                        shared(machine.cores, main + busy + machine.wire_demand * links +
                                                  machine.start_demand * waiting);
    }
    slowed_[compute] = slowed_[workers] = true;
    slowed_[node] = slowed_[cross] = machine.wire_demand > 0.0;
}

State Simulator::start() const {
    State state{};
    for (int lane = 0; lane < machine.lanes; ++lane) state.runners[lane].job = lane;
    return state;
}

void Simulator::begin(State& state, int lane, std::int32_t option) const {
    Runner& runner = state.runners[lane];
    runner.stage = jobs.stage[option];
    runner.end = jobs.stage[option + 1];
    ++state.begun;
    if (runner.stage == runner.end) {
        runner.job += machine.lanes;
        return;
    }
    runner.left = jobs.seconds[runner.stage];
    ++state.running[jobs.lane[runner.stage]];
}

// Steps from event to event: a stage ends, a job that a lane waits for is complete, or backward
// ends.
template <class Note>
int Simulator::run(State& state, const Note& note) const {
    const int lanes = machine.lanes;
    double until[most_lanes];
    Speed speeds[most_lanes];
    for (;;) {
        double target = machine.backward;
        for (int lane = 0; lane < lanes; ++lane) {
            const Runner& runner = state.runners[lane];
            if (runner.stage != runner.end || runner.job >= jobs.count) continue;
            const double ready = jobs.ready[runner.job];
            if (ready <= state.done) return lane;
            target = std::min(target, ready);
        }
        const bool interrupted = state.running[compute] > 0;
        const bool backward = !interrupted && state.done < machine.backward;
        const int links = (state.running[node] > 0) + (state.running[cross] > 0);
        const bool main = interrupted || backward;
        const Speed processors =
            processors_[main][state.running[workers]][links][state.running[latency] > 0];
        const double until_target = backward ? (target - state.done) * processors.pace : never;
        double step = until_target;
        for (int lane = 0; lane < lanes; ++lane) {
            const Runner& runner = state.runners[lane];
            if (runner.stage == runner.end) continue;
            speeds[lane] = speed(state, processors, main, jobs.lane[runner.stage]);
            until[lane] = runner.left * speeds[lane].pace;
            step = std::min(step, until[lane]);
        }
        if (step == never) return -1;
        state.now += step;
        if (backward) {
            state.done =
                until_target == step ? target : state.done + step * processors.rate;
            if (state.done >= machine.backward) note.backward_ends(state.now);
        }
        for (int lane = 0; lane < lanes; ++lane) {
            Runner& runner = state.runners[lane];
            if (runner.stage == runner.end) continue;
            if (until[lane] != step) {
                runner.left = std::max(0.0, runner.left - step * speeds[lane].rate);
                continue;
            }
            note.ends(runner.stage, state.now);
            --state.running[jobs.lane[runner.stage]];
            if (++runner.stage == runner.end) {
                runner.job += lanes;
                continue;
            }
            note.begins(runner.stage, state.now);
            runner.left = jobs.seconds[runner.stage];
            ++state.running[jobs.lane[runner.stage]];
        }
    }
}

int Simulator::advance(State& state) const { return run(state, Nothing{}); }

int Simulator::advance(State& state, Record& record) const { return run(state, Notes{record}); }

double run_all(const Simulator& simulator, const std::int32_t* choice) {
    State state = simulator.start();
    for (int lane; (lane = simulator.advance(state)) >= 0;) {
        const std::int32_t job = state.runners[lane].job;
        simulator.begin(state, lane, simulator.jobs.option[job] + choice[job]);
    }
    return state.now;
}

double run_all(const Simulator& simulator, const std::int32_t* choice, Record& record) {
    State state = simulator.start();
    for (int lane; (lane = simulator.advance(state, record)) >= 0;) {
        const std::int32_t job = state.runners[lane].job;
        const std::int32_t option = simulator.jobs.option[job] + choice[job];
        simulator.begin(state, lane, option);
        if (const auto first = simulator.jobs.stage[option]; first != state.runners[lane].end)
            record.start[first] = state.now;
    }
    return state.now;
}

}  // namespace gradwire
