// Predicted steps, and the search over options on them.
#include "../planner/timeline.hpp"

#include "../planner/bound.hpp"
#include "../planner/ordered.hpp"
#include "../planner/search.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

using JobsAt = std::tuple<std::int32_t, Address, Address, Address, Address, Address>;
using MachineIs =
    std::tuple<std::int32_t, double, double, double, double, double, double, double>;

Jobs jobs_at(const JobsAt& jobs) {
    const auto& [count, ready, option, stage, lane, seconds] = jobs;
    return {count,
            at<double>(ready),
            at<std::int32_t>(option),
            at<std::int32_t>(stage),
            at<std::int32_t>(lane),
            at<double>(seconds)};
}

Machine machine_is(const MachineIs& machine) {
    const auto& [lanes, cores, wire_demand, workers, backward, slowdown, sharing, demand] = machine;
    return {lanes, cores, wire_demand, workers, backward, slowdown, sharing, demand};
}

// repeats: the number of simulations in this one call; benchmarks use it to time one without the
// cost of the call.
double simulate_at(const JobsAt& jobs, const MachineIs& machine, Address choice, int repeats) {
    const nb::gil_scoped_release release;
    double seconds = 0.0;
    Interrupt signals = python_signals();
    for (int i = 0; i < repeats; ++i) {
        signals(1000 + 100 * std::int64_t{std::get<0>(jobs)});
        const Simulator simulator(jobs_at(jobs), machine_is(machine));
        seconds = run_all(simulator, at<std::int32_t>(choice));
    }
    return seconds;
}

std::pair<double, double> record_at(const JobsAt& jobs, const MachineIs& machine, Address choice,
                                    Address start, Address end) {
    const nb::gil_scoped_release release;
    const Simulator simulator(jobs_at(jobs), machine_is(machine));
    Record record{at<double>(start), at<double>(end), 0.0};
    const double seconds = run_all(simulator, at<std::int32_t>(choice), record);
    return {seconds, record.backward_end};
}

double ordered_at(const JobsAt& jobs, Address choice, double backward, bool by_ready,
                  Address idle) {
    const nb::gil_scoped_release release;
    return ordered(jobs_at(jobs), at<std::int32_t>(choice), backward, by_ready, at<double>(idle));
}

std::tuple<double, double, double> search_at(const JobsAt& jobs, const MachineIs& machine,
                                             double limit, std::uint64_t seed, int rounds,
                                             Address choice) {
    const nb::gil_scoped_release release;
    Interrupt signals = python_signals();
    const Found found = search(jobs_at(jobs), machine_is(machine), {limit, seed, rounds},
                               at<std::int32_t>(choice), signals);
    return {found.seconds, found.bound, found.evaluations};
}

std::pair<double, double> exhaust_at(const JobsAt& jobs, const MachineIs& machine,
                                     Address choice) {
    const nb::gil_scoped_release release;
    Interrupt signals = python_signals();
    const Found found =
        exhaust(jobs_at(jobs), machine_is(machine), at<std::int32_t>(choice), signals);
    return {found.seconds, found.evaluations};
}

double lower_bound_at(const JobsAt& jobs, const MachineIs& machine, int rounds) {
    const nb::gil_scoped_release release;
    const Jobs own = jobs_at(jobs);
    const std::vector<Usage> usage = usages(own);
    Interrupt signals = python_signals();
    return lower_bound(own, machine_is(machine), usage, undominated(own, usage, signals), rounds,
                       [&](const auto& choice) {
                           signals(100 * std::ssize(choice));
                           return std::numeric_limits<double>::infinity();
                       });
}

std::vector<std::int32_t> undominated_at(const JobsAt& jobs) {
    const nb::gil_scoped_release release;
    const Jobs own = jobs_at(jobs);
    Interrupt signals = python_signals();
    return undominated(own, usages(own), signals).begin;
}

}  // namespace

void bind_timeline(nb::module_& m) {
    m.def("simulate_step", &simulate_at);
    m.def("record_step", &record_at);
    m.def("ordered_step", &ordered_at);
    m.def("search_options", &search_at);
    m.def("exhaust_options", &exhaust_at);
    m.def("lower_bound", &lower_bound_at);
    m.def("undominated", &undominated_at);
}

}  // namespace gradwire
