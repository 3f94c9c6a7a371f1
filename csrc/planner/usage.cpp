#include "usage.hpp"

#include <algorithm>
#include <numeric>

namespace gradwire {
namespace {

bool no_more(const Usage& a, const Usage& b) {
    for (int r = 0; r < resources; ++r)
        if (a.on[r] > b.on[r]) return false;
    return true;
}

}  // namespace

Usage& Usage::operator+=(const Usage& other) {
    for (int r = 0; r < resources; ++r) on[r] += other.on[r];
    total += other.total;
    return *this;
}

std::vector<Usage> usages(const Jobs& jobs) {
    const std::int32_t options = jobs.option[jobs.count];
    std::vector<Usage> usage(static_cast<std::size_t>(options), Usage{});
    for (std::int32_t option = 0; option < options; ++option) {
        for (std::int32_t i = jobs.stage[option]; i < jobs.stage[option + 1]; ++i) {
            usage[option].on[jobs.lane[i]] += jobs.seconds[i];
            usage[option].total += jobs.seconds[i];
        }
    }
    return usage;
}

std::vector<double> seconds_after(const Jobs& jobs) {
    const std::int32_t options = jobs.option[jobs.count];
    std::vector<double> after(static_cast<std::size_t>(jobs.stage[options]));
    for (std::int32_t option = 0; option < options; ++option) {
        double sum = 0.0;
        for (std::int32_t i = jobs.stage[option + 1] - 1; i >= jobs.stage[option]; --i) {
            after[i] = sum;
            sum += jobs.seconds[i];
        }
    }
    return after;
}

Kept undominated(const Jobs& jobs, const std::vector<Usage>& usage, Interrupt& interrupt) {
    Kept kept;
    kept.begin.push_back(0);
    std::vector<std::int32_t> order;
    for (std::int32_t job = 0; job < jobs.count; ++job) {
        order.resize(static_cast<std::size_t>(jobs.option[job + 1] - jobs.option[job]));
        std::iota(order.begin(), order.end(), jobs.option[job]);
        // An option can only be dominated by one whose total is not larger, so those come first.
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
            return usage[a].total < usage[b].total;
        });
        const auto first = kept.option.size();
        for (const std::int32_t option : order) {
            const auto own = kept.option.begin() + static_cast<std::ptrdiff_t>(first);
            interrupt(10 * (kept.option.end() - own) + 10);
            if (std::none_of(own, kept.option.end(), [&](std::int32_t other) {
                    return no_more(usage[other], usage[option]);
                }))
                kept.option.push_back(option);
        }
        kept.begin.push_back(static_cast<std::int32_t>(kept.option.size()));
    }
    return kept;
}

std::vector<Usage> least(const Jobs& jobs, const std::vector<Usage>& usage, const Kept& kept) {
    std::vector<Usage> least;
    for (std::int32_t job = 0; job < jobs.count; ++job) {
        Usage low = usage[kept.option[kept.begin[job]]];
        for (std::int32_t i = kept.begin[job]; i < kept.begin[job + 1]; ++i) {
            const Usage& own = usage[kept.option[i]];
            for (int r = 0; r < resources; ++r) low.on[r] = std::min(low.on[r], own.on[r]);
            low.total = std::min(low.total, own.total);
        }
        least.push_back(low);
    }
    return least;
}

double Rest::least_end(const Simulator& simulator, const std::vector<double>& after,
                       const State& state) const {
    double seconds = 0.0, sums[resources] = {};
    sums[compute] = simulator.machine.backward - state.done;
    for (int lane = 0; lane < lanes_; ++lane) {
        const Runner& runner = state.runners[lane];
        const bool runs = runner.stage != runner.end;
        const Usage& rest =
            sums_[static_cast<std::size_t>(std::min(runner.job + (runs ? lanes_ : 0), count_))];
        double own = rest.total;
        if (runs) {
            own += runner.left + after[static_cast<std::size_t>(runner.stage)];
            sums[simulator.jobs.lane[runner.stage]] += runner.left;
        }
        seconds = std::max(seconds, own);
        for (int r = compute; r < resources; ++r) sums[r] += rest.on[r];
    }
    sums[workers] /= simulator.machine.workers;
    for (int r = compute; r < resources; ++r) seconds = std::max(seconds, sums[r]);
    return state.now + seconds;
}

}  // namespace gradwire
