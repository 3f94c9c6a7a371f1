// Lower bounds on what is to come. Clocks add up and wait for one another, so a completion (groups
// and options of all tensors from a stop on) ends at a maximum of sums:
//
//     max(delay + c[0], cpu + c[1], link + c[2])
//
// Of all completions of a stop the front of their c is kept: the least of these maxima is the best
// time of plans that get there with given clocks. Fronts that grow long are thinned, which lowers
// it; then a bound by paths (link_paths.hpp) may be higher.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "link_paths.hpp"

namespace gradwire {

using Tail = std::array<double, 3>;

class Bounds {
public:
    // Of plans that cut at stops alone (from 0 to n, ascending) and end before limit.
    Bounds(const LinkProblem& p, const std::vector<std::size_t>& stops, const Paths& paths,
           double limit, std::size_t longest, Interrupt& interrupt);

    // What a plan with these clocks takes at least; limit or more: not less than limit.
    double operator()(const Clocks& clocks, std::size_t stop) const;

private:
    void collect(std::size_t stop);
    void thin(std::size_t stop);
    bool thinned(std::vector<Tail>& front, double slack) const;

    const LinkProblem& p_;
    const std::vector<std::size_t>& stops_;
    const Paths& paths_;
    const double limit_;
    const std::size_t longest_;
    Interrupt& interrupt_;
    const double least_slack_;
    double slack_;
    std::vector<std::vector<Tail>> fronts_;
    std::vector<Tail> least_;  // of each front, coordinate by coordinate
    std::vector<std::pair<double, Tail>> found_;
};

}  // namespace gradwire
