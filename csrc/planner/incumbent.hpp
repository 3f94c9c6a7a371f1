// The current choice, with the state in which each job began: a change of a job is simulated from
// there.
#pragma once

#include "usage.hpp"

namespace gradwire {

class Incumbent {
  public:
    Incumbent(const Simulator& simulator, const std::vector<Usage>& usage);

    // Replaces the choice, whatever its time.
    void adopt(const std::vector<std::int32_t>& choice);
    // Changes the option of one job, or of many at once.
    void change(std::int32_t job, std::int32_t option);
    void change(const std::vector<std::int32_t>& jobs, const std::vector<std::int32_t>& options);

    // Returns the step's time with another option for the job, or infinity if it is not below
    // `least`. option: an index among all options.
    double trial(std::int32_t job, std::int32_t option, double least);

    // The option of each job: indices among all options.
    const std::vector<std::int32_t>& choice() const { return choice_; }
    double seconds() const { return seconds_; }
    double evaluations() const { return begun_ / static_cast<double>(choice_.size()); }

  private:
    void run(State state);
    bool same(const State& state, const State& other) const;
    void sum(std::int32_t last);

    const Simulator& simulator_;
    const std::vector<Usage>& usage_;
    std::vector<double> after_;
    std::vector<std::int32_t> choice_;
    std::vector<State> states_;  // (jobs,) just before each begins
    Rest rest_;
    double seconds_ = 0.0, begun_ = 0.0;
};

}  // namespace gradwire
