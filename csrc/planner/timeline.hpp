// Predicts the time of a training step: buckets go over the conductor's lanes in the plan's order,
// stage by stage; stages share links, workers and processors as fluids do. The rule, with a
// drawing, is in gradwire/planner/timeline.py. Nothing is checked here;
// gradwire/kernels/schedule.py does.
#pragma once

#include <cstdint>

namespace gradwire {

enum Resource : std::int32_t { latency, compute, workers, node, cross };
constexpr int resources = 5;
constexpr int most_lanes = 16;

// Jobs have options, options have stages: nested lists, given by where each list begins.
struct Jobs {
    std::int32_t count;
    const double* ready;         // (count,) seconds of backward work until it is complete
    const std::int32_t* option;  // (count + 1,) the first option of each job
    const std::int32_t* stage;   // (options + 1,) the first stage of each option
    const std::int32_t* lane;    // (stages,) the Resource of each stage
    const double* seconds;       // (stages,) at full speed
};

struct Machine {
    std::int32_t lanes;  // of the conductor: 1 to most_lanes
    double cores;        // at least 1
    double wire_demand;  // processors that a link at full speed takes
    double workers;      // at least 1
    double backward;     // seconds, not less than any job's ready
    double start_slowdown;  // LATENCY's factor while backward runs: 1 or more
    double start_sharing;   // added to its factor for each other stage on it
    double start_demand;    // processors that LATENCY takes, however many stages
};

// rate: seconds of work per second; pace: its inverse. Both are kept so that nothing is divided.
struct Speed {
    double rate, pace;
};

// A lane of the conductor. It waits for its job if stage == end.
struct Runner {
    std::int32_t job, stage, end;
    double left;  // seconds left of the running stage, at full speed
};

struct State {
    double now;   // seconds since backward began
    double done;  // seconds of backward work done
    std::int32_t begun;
    std::int32_t running[resources];
    Runner runners[most_lanes];
};

// What a run records, if requested.
struct Record {
    double* start;  // (stages,)
    double* end;    // (stages,)
    double backward_end;
};

class Simulator {
  public:
    Simulator(const Jobs& jobs, const Machine& machine);

    State start() const;
    // Runs until a lane takes its next job, and returns the lane; begin() has to follow. Returns -1
    // when all is over, at state.now.
    int advance(State& state) const;
    int advance(State& state, Record& record) const;
    // Gives the job of the lane an option: an index among all options.
    void begin(State& state, int lane, std::int32_t option) const;

    const Jobs jobs;
    const Machine machine;

  private:
    template <class Note>
    int run(State& state, const Note& note) const;
    // main: whether backward runs, or COMPUTE stages that interrupt it.
    Speed speed(const State& state, const Speed& processors, bool main,
                std::int32_t resource) const {
        if (resource == latency) return starts_[main][state.running[latency]];
        const Speed share = share_[resource][state.running[resource]];
        const Speed own = slowed_[resource] ? processors : Speed{1.0, 1.0};
        return {own.rate * share.rate, own.pace * share.pace};
    }

    bool slowed_[resources];
    Speed share_[resources][most_lanes + 1];
    Speed starts_[2][most_lanes + 1];            // [main][stages on LATENCY]
    Speed processors_[2][most_lanes + 1][3][2];  // [main][workers][links in use][any LATENCY]
};

// Returns the end of the last job or of backward. choice: (jobs,) an option of each, from 0.
double run_all(const Simulator& simulator, const std::int32_t* choice);
double run_all(const Simulator& simulator, const std::int32_t* choice, Record& record);

}  // namespace gradwire
