// A lower bound on what is to come, by paths. Clocks are maxima of sums, so a plan ends when the
// longest of its paths does: a path begins with backward, turns to the link at some tensor, or to
// the cpu worker and from there to the link, and gets longer with each group that it passes. So a
// plan ends after any weighted mean of its paths. With fixed weights that mean is a sum over
// groups; the plan of least mean, and with it the bound, is found from stop to stop, backwards.
//
// The weights are to make the least mean large. That is a game of paths against plans, played in
// rounds: a path gains weight exponentially with its length in the plans of all rounds so far
// (Freund and Schapire 1999, "Adaptive game playing using multiplicative weights").
#pragma once

#include <array>

#include "../interrupt.hpp"
#include "lanes.hpp"

namespace gradwire {

class Paths {
public:
    // Of plans that cut at stops alone: from 0 to n, ascending.
    Paths(const LinkProblem& p, const std::vector<std::size_t>& stops, Interrupt& interrupt);

    // Begins with what another has learned of the same problem, by fewer stops.
    void begin_like(const Paths& other);

    // What a plan with these clocks takes at least.
    double operator()(const Clocks& c, std::size_t stop) const {
        const Mean& at = best_[stop];
        const double begin = p_.ready[std::min(stops_[stop], p_.n - 1)] + c.delay;
        return at.delay * c.delay + (1 - at.delay - at.link) * std::max(c.cpu, begin) +
               at.link * std::max(c.link, begin) + at.rest;
    }

    // What a plan with this completion of a stop takes at least: delay + c[0], cpu + c[1] and
    // link + c[2] are where it ends at the earliest. Only after `look_back`.
    double after(const std::array<double, 3>& c, std::size_t stop) const {
        const Mean& at = best_[stop];
        return at.before + at.delay * c[0] + (1 - at.delay - at.link) * c[1] + at.link * c[2];
    }
    void look_back();

    // One round. goal: the time of a plan. ends, options: of the plan of least mean.
    void play(double goal, std::vector<std::int32_t>& ends, std::vector<std::int32_t>& options);

    // The greatest least mean so far: no plan is faster.
    double bound = 0;

private:
    // Weights of the paths that are with backward, and of those on the link; least means of what
    // comes and of what was.
    struct Mean {
        double delay = 0, link = 0, rest = 0, before = 0;
    };
    // Of turns at a stop: from backward to the link, from backward to the worker, from the worker
    // to the link.
    struct Turns {
        double direct = 0, away = 0, back = 0;
    };
    struct Cost {
        double encode, send, decode;
    };

    double mean(const Cost& cost, Lane lane, const Mean& at, const Mean& to, double ready) const;
    void weigh();
    void minimise();
    void lengthen();
    void learn(double missing);

    const LinkProblem& p_;
    const std::vector<std::size_t>& stops_;
    Interrupt& interrupt_;
    const std::size_t last_;
    std::vector<std::size_t> row_;          // of each stop: its costs, those to the next stop first
    std::vector<std::vector<Cost>> costs_;  // by option
    std::vector<Turns> logs_, shares_, lengths_;  // a path's weight is e to its turns' logs
    std::vector<double> newest_;  // of paths that turned to the worker, those that did last
    std::vector<Mean> now_, best_;
    std::vector<std::size_t> next_, by_;
    double step_ = 0.5;
    int idle_ = 0;
};

}  // namespace gradwire
