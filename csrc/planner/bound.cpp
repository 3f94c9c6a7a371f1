// Cuts. B: seconds of backward; w(i): seconds that job i needs on the resource; sums are over jobs.
//
//   link r, from job j on      T >= ready + before + sum(i >= j) w_r(i) + after
//   workers, from j on         T >= ready + before + sum(i >= j) w(i) / workers + after
//   processors, from j on      T >= ready + (B - ready + sum(i >= j) w(i) + sum(i < j) compute(i)) / cores
//   lane of job j              T >= ready(j) + sum(lane, i < j) compute(i) + sum(lane, i >= j) total(i)
//   all lanes, before job j    T >= max(B, ready + what a lane has left) + sum(i < j) compute(i)
//   compute                    T >= B + sum(i) compute(i)
//
// ready, before, after: the least of jobs j and later; before and after count only if one of these
// jobs uses the resource whatever is chosen. The lane's cut holds because the lane's jobs before j
// have ended when j begins, and stopped backward while they computed. The cut of all lanes holds
// likewise: when the last of jobs j ... j + lanes - 1 begins, one on each lane, all jobs before j
// have ended.
#include "bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace gradwire {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

enum Kind { on_node, on_cross, on_workers, on_processors, on_lane, before, kinds };
using Weights = std::array<double, kinds>;  // of an option: `before` holds compute

// The earliest first use of a resource and the least time after its last use.
struct Ends {
    double ready = never, first = never, tail = never;
    bool always = false;
};

class Cuts {
  public:
    Cuts(const Jobs& jobs, const Machine& machine, const std::vector<Usage>& usage,
         const Kept& kept)
        : jobs_(jobs), machine_(machine), kept_(kept), n_(static_cast<std::size_t>(jobs.count)) {
        for (const std::int32_t option : kept.option)
            options_.push_back(weights(usage[static_cast<std::size_t>(option)]));
        chosen_.resize(n_);
        picked_.resize(n_);
        head_.assign(n_, Weights{});
        low_.resize(n_);
        for (std::size_t i = 0; i < n_; ++i)
            for (int k = 0; k < kinds; ++k) low_[i][k] = cheapest(i, k);
        fill_heads();
    }

    double solve(std::int32_t rounds, const Reach& reach) {
        chosen_ = low_;
        values();
        double best = *std::max_element(value_.begin(), value_.end());
        std::vector<double> lambda(value_.size());
        for (std::size_t c = 0; c < lambda.size(); ++c)
            lambda[c] = std::exp(60.0 * (value_[c] - best) / best);
        for (std::int32_t round = 0; round < rounds; ++round) {
            normalize(lambda);
            best = std::max(best, choose(lambda));
            if (best >= reach(picked_) * (1.0 - 1e-9)) break;
            values();
            const double top = *std::max_element(value_.begin(), value_.end());
            const double rate = 40.0 / std::sqrt(1.0 + round) / top;
            for (std::size_t c = 0; c < lambda.size(); ++c)
                if (lambda[c] > 1e-30) lambda[c] *= std::exp(rate * (value_[c] - top));
        }
        return best;
    }

  private:
    Weights weights(const Usage& usage) const {
        const double links = usage.on[node] + usage.on[cross];
        const double processors =
            usage.on[compute] + usage.on[workers] + machine_.wire_demand * links;
        Weights w{};
        w[on_node] = usage.on[node];
        w[on_cross] = usage.on[cross];
        w[on_workers] = usage.on[workers] / machine_.workers;
        w[on_processors] = processors / machine_.cores;
        w[on_lane] = usage.total;
        w[before] = usage.on[compute];
        return w;
    }

    double cheapest(std::size_t job, int kind) const {
        double low = never;
        for (std::int32_t i = kept_.begin[job]; i < kept_.begin[job + 1]; ++i)
            low = std::min(low, options_[static_cast<std::size_t>(i)][kind]);
        return low;
    }

    // Over all options of a job: when they first use a resource, and what they do after it.
    Ends ends(std::int32_t job, std::int32_t resource) const {
        Ends ends{jobs_.ready[job], never, never, true};
        for (std::int32_t o = jobs_.option[job]; o < jobs_.option[job + 1]; ++o) {
            double since = 0.0, first = never, tail = 0.0;
            for (std::int32_t i = jobs_.stage[o]; i < jobs_.stage[o + 1]; ++i) {
                const bool here = jobs_.lane[i] == resource && jobs_.seconds[i] > 0.0;
                if (here && first == never) first = since;
                since += jobs_.seconds[i];
                tail = here ? 0.0 : tail + jobs_.seconds[i];
            }
            if (first == never) {
                ends.always = false;
            } else {
                ends.first = std::min(ends.first, ends.ready + first);
                ends.tail = std::min(ends.tail, tail);
            }
        }
        return ends;
    }

    void fill_heads() {
        const std::pair<Kind, Resource> shared[] = {
            {on_node, node}, {on_cross, cross}, {on_workers, workers}};
        for (const auto& [kind, resource] : shared) {
            Ends all;
            for (std::size_t j = n_; j-- > 0;) {
                const Ends own = ends(static_cast<std::int32_t>(j), resource);
                all.ready = std::min(all.ready, own.ready);
                all.first = std::min(all.first, own.first);
                all.tail = std::min(all.tail, own.tail);
                all.always |= own.always;
                head_[j][kind] = all.always ? all.first + all.tail : all.ready;
            }
        }
        double ready = never;
        std::vector<double> rest(n_ + lanes());
        for (std::size_t j = n_; j-- > 0;) {
            ready = std::min(ready, jobs_.ready[j]);
            rest[j] = rest[j + lanes()] + low_[j][on_lane];
            head_[j][on_processors] = ready + (machine_.backward - ready) / machine_.cores;
            head_[j][on_lane] = jobs_.ready[j];
            double left = j + lanes() <= n_ ? never : 0.0;
            for (std::size_t i = j; i < std::min(n_, j + lanes()); ++i)
                left = std::min(left, jobs_.ready[i] + rest[i]);
            head_[j][before] = std::max(left, machine_.backward);
        }
    }

    // Computes value_[c], cut c for the chosen weights: all kinds of all jobs, then compute.
    void values() {
        value_.assign(n_ * kinds + 1, 0.0);
        Weights sum{};
        std::vector<double> lane(lanes());
        for (std::size_t j = n_; j-- > 0;) {
            for (int k = on_node; k <= on_processors; ++k) {
                sum[k] += chosen_[j][k];
                value_[j * kinds + k] = head_[j][k] + sum[k];
            }
            lane[j % lanes()] += chosen_[j][on_lane];
            value_[j * kinds + on_lane] = head_[j][on_lane] + lane[j % lanes()];
        }
        double computed = 0.0;
        std::fill(lane.begin(), lane.end(), 0.0);
        for (std::size_t j = 0; j < n_; ++j) {
            value_[j * kinds + before] = head_[j][before] + computed;
            value_[j * kinds + on_processors] += computed / machine_.cores;
            value_[j * kinds + on_lane] += lane[j % lanes()];
            lane[j % lanes()] += chosen_[j][before];
            computed += chosen_[j][before];
        }
        value_[n_ * kinds] = machine_.backward + computed;
    }

    // Chooses the cheapest option of each job for weighted cuts; returns the total cost.
    double choose(const std::vector<double>& lambda) {
        std::vector<Weights> price(n_, Weights{});
        Weights sum{};
        std::vector<double> lane(lanes());
        double total = lambda[n_ * kinds] * machine_.backward;
        for (std::size_t j = 0; j < n_; ++j) {
            const double* own = &lambda[j * kinds];
            for (int k = on_node; k <= on_processors; ++k) price[j][k] = sum[k] += own[k];
            price[j][on_lane] = lane[j % lanes()] += own[on_lane];
            for (int k = 0; k < kinds; ++k) total += own[k] * head_[j][k];
        }
        double later = lambda[n_ * kinds];
        std::fill(lane.begin(), lane.end(), 0.0);
        for (std::size_t j = n_; j-- > 0;) {
            const double* own = &lambda[j * kinds];
            price[j][before] = later + lane[j % lanes()];
            later += own[before] + own[on_processors] / machine_.cores;
            lane[j % lanes()] += own[on_lane];
            total += pick(j, price[j]);
        }
        return total;
    }

    double pick(std::size_t job, const Weights& price) {
        double low = never;
        for (std::int32_t i = kept_.begin[job]; i < kept_.begin[job + 1]; ++i) {
            const Weights& w = options_[static_cast<std::size_t>(i)];
            double cost = 0.0;
            for (int k = 0; k < kinds; ++k) cost += price[k] * w[k];
            if (cost < low) {
                low = cost;
                chosen_[job] = w;
                picked_[job] = kept_.option[i];
            }
        }
        return low;
    }

    static void normalize(std::vector<double>& lambda) {
        double sum = 0.0;
        for (const double one : lambda) sum += one;
        for (double& one : lambda) one /= sum;
    }

    std::size_t lanes() const { return static_cast<std::size_t>(machine_.lanes); }

    const Jobs& jobs_;
    const Machine& machine_;
    const Kept& kept_;
    std::size_t n_;
    std::vector<Weights> options_, chosen_, head_, low_;
    std::vector<std::int32_t> picked_;
    std::vector<double> value_;
};

}  // namespace

double lower_bound(const Jobs& jobs, const Machine& machine, const std::vector<Usage>& usage,
                   const Kept& kept, std::int32_t rounds, const Reach& reach) {
    if (jobs.count == 0) return machine.backward;
    return Cuts(jobs, machine, usage, kept).solve(rounds, reach);
}

}  // namespace gradwire
