// Lower bounds on what is to come. Times add up and wait for one another, so a completion (groups
// and options of all tensors from a stop on) ends at a maximum of sums:
//
//     max(delay + c[0], link + c[1], delay + cpu_debt + c[2], last + delay + gpu_debt + c[3], ...)
//
// Of all completions of a stop the front of their c is kept: the least of these maxima bounds the
// time of every plan that gets there with given clocks. Waits for the cpu worker and for decodes
// before one's own are left out, and fronts that grow long are thinned: both only lower the bound.
//
// No lane ends after the plan, so the plan ends after any mean of theirs: for some weights of the
// lanes the least sum of weighted loads is a second bound, where work is shared between lanes.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "lanes.hpp"

namespace gradwire {

using Tail = std::array<double, 4>;

// Of the lanes in a mean: link, compute, cpu worker.
using Shares = std::array<double, 3>;

class Bounds {
public:
    // Of plans that cut at stops alone (from 0 to n, ascending) and end before limit.
    Bounds(const LinkProblem& p, const std::vector<std::size_t>& stops, double limit,
           std::size_t longest);

    // What a plan with these clocks takes at least; infinity: not less than limit.
    double operator()(const Clocks& clocks, std::size_t stop) const;

private:
    double mean(const Clocks& clocks, std::size_t stop) const;
    void load();
    void add_load(const Group& g, const double* then, double* least) const;
    void collect(std::size_t stop);
    void thin(std::size_t stop);
    bool thinned(std::vector<Tail>& front, double slack) const;

    const LinkProblem& p_;
    const std::vector<std::size_t>& stops_;
    const double limit_;
    const std::size_t longest_;
    const double least_slack_;
    double slack_;
    const std::vector<Shares> shares_;
    std::vector<double> loads_;  // of each stop, by mean
    std::vector<std::vector<Tail>> fronts_;
    std::vector<Tail> least_;  // of each front, coordinate by coordinate
    std::vector<std::pair<double, Tail>> found_;
};

}  // namespace gradwire
