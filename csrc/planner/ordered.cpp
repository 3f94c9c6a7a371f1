#include "ordered.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

namespace gradwire {
namespace {

bool is_link(std::int32_t lane) { return lane == node || lane == cross; }

// A job under way: its stages without the COMPUTE ones before any link, which are charged when the
// job becomes ready.
struct Chain {
    std::int32_t stage, end;
    bool away;  // whether its first move has begun
    bool sent;  // whether a link has served it
    double now;
};

class Queues {
  public:
    Queues(const Jobs& jobs, const std::int32_t* choice, double backward, double* idle)
        : jobs_(jobs), idle_(idle), chains_(static_cast<std::size_t>(jobs.count)) {
        for (std::int32_t job = 0; job < jobs.count; ++job) {
            const std::int32_t option = jobs.option[job] + choice[job];
            chains_[job] = {jobs.stage[option], jobs.stage[option + 1], false, false, 0.0};
        }
        compute_end_ = backward + interrupt();
    }

    double serve_in_order() {
        for (std::int32_t job = 0; job < jobs_.count; ++job)
            while (step(job)) {}
        return end();
    }

    double serve_by_ready() {
        using Arrival = std::pair<double, std::int32_t>;
        std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals;
        for (std::int32_t job = 0; job < jobs_.count; ++job)
            arrivals.push({chains_[job].now, job});
        while (!arrivals.empty()) {
            const std::int32_t job = arrivals.top().second;
            arrivals.pop();
            if (step(job)) arrivals.push({chains_[job].now, job});
        }
        return end();
    }

  private:
    // Charges the COMPUTE stages before any link: they run when the job is ready and delay all
    // later backward.
    double interrupt() {
        std::vector<std::int32_t> order(chains_.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [this](std::int32_t a, std::int32_t b) {
            return jobs_.ready[a] < jobs_.ready[b];
        });
        double delay = 0.0;
        for (const std::int32_t job : order) {
            for (std::int32_t i = chains_[job].stage; i < chains_[job].end; ++i) {
                if (is_link(jobs_.lane[i])) break;
                if (jobs_.lane[i] == compute) delay += jobs_.seconds[i];
            }
            chains_[job].now = jobs_.ready[job] + delay;
        }
        return delay;
    }

    // Serves the next stage of a job; returns whether there was one.
    bool step(std::int32_t job) {
        Chain& chain = chains_[job];
        if (chain.stage == chain.end) {
            last_ = std::max(last_, chain.now);
            return false;
        }
        const std::int32_t lane = jobs_.lane[chain.stage];
        const double seconds = jobs_.seconds[chain.stage++];
        if (lane == latency || is_link(lane)) leave(chain, job);
        if (lane == latency) {
            chain.now += seconds;
        } else if (is_link(lane)) {
            link(chain, lane, seconds);
        } else if (chain.sent || lane != compute) {
            double& free = chain.sent ? late_[lane] : early_;
            free = std::max(free, chain.now) + seconds;
            chain.now = free;
            if (lane == compute) debt_ += seconds;
        }
        return true;
    }

    void leave(Chain& chain, std::int32_t job) {
        if (!chain.away && used_) idle_[job] = std::max(0.0, chain.now - links_end_);
        chain.away = true;
    }

    void link(Chain& chain, std::int32_t lane, double seconds) {
        double& free = free_[lane == cross];
        free = std::max(free, chain.now) + seconds;
        chain.now = free;
        chain.sent = used_ = true;
        links_end_ = std::max(links_end_, free);
    }

    double end() const {
        return std::max({last_, compute_end_ + debt_, late_[compute], late_[workers]});
    }

    const Jobs& jobs_;
    double* idle_;
    std::vector<Chain> chains_;
    double compute_end_ = 0.0, debt_ = 0.0, last_ = 0.0;
    double early_ = 0.0;          // when the workers are done encoding
    double late_[resources] = {};  // when each is done decoding
    double free_[2] = {}, links_end_ = 0.0;
    bool used_ = false;
};

}  // namespace

double ordered(const Jobs& jobs, const std::int32_t* choice, double backward, bool by_ready,
               double* idle) {
    std::fill(idle, idle + jobs.count, 0.0);
    Queues queues(jobs, choice, backward, idle);
    return by_ready ? queues.serve_by_ready() : queues.serve_in_order();
}

}  // namespace gradwire
