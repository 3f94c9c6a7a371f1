// Plans: what travels together, and how.
#include "../planner/one_link.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

// Its lane, and how many rows its encode, send and decode curves have, one after the other.
using GivenOption = std::tuple<int, std::size_t, std::size_t, std::size_t>;

using Found = std::tuple<std::vector<std::int32_t>, std::vector<std::int32_t>, double, double,
                         std::size_t>;

Found plan_link_at(Address ready, Address position, std::size_t n, Address rows,
                   const std::vector<GivenOption>& options,
                   std::pair<std::size_t, std::size_t> most, double tolerance,
                   std::size_t max_labels) {
    const nb::gil_scoped_release release;
    LinkProblem problem{at<double>(ready), at<double>(position), n, {}, most.first, most.second};
    const double* row = at<double>(rows);
    const auto next = [&row](std::size_t count) {
        const Curve curve{row, count};
        row += 3 * count;
        return curve;
    };
    for (const auto& [lane, encode, send, decode] : options) {
        const Curve first = next(encode), second = next(send), third = next(decode);
        problem.options.push_back({static_cast<Lane>(lane), first, second, third});
    }
    Interrupt signals = python_signals();
    LinkPlan plan = plan_link(problem, tolerance, max_labels, signals);
    return {std::move(plan.ends), std::move(plan.options), plan.seconds, plan.lower_bound,
            plan.labels};
}

}  // namespace

void bind_one_link(nb::module_& m) { m.def("plan_link", &plan_link_at); }

}  // namespace gradwire
