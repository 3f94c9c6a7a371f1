#include "search.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "bound.hpp"
#include "incumbent.hpp"

namespace gradwire {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr double less = 1.0 - 1e-12;   // rounding does not count as shorter
constexpr double enough = 1.0 - 1e-7;  // this near to the bound, nothing can be gained

using Choice = std::vector<std::int32_t>;

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t bits() {
        std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    std::int32_t below(std::ptrdiff_t n) {
        return static_cast<std::int32_t>(bits() % static_cast<std::uint64_t>(n));
    }
    double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  private:
    std::uint64_t state_;
};

using Prices = std::array<double, resources>;

class Search {
  public:
    Search(const Jobs& jobs, const Machine& machine, const Effort& effort, Interrupt& interrupt)
        : jobs_(jobs), interrupt_(interrupt), simulator_(jobs, machine), usage_(usages(jobs)),
          kept_(undominated(jobs, usage_, interrupt)), incumbent_(simulator_, usage_),
          random_(effort.seed), limit_(effort.limit), all_(static_cast<std::size_t>(jobs.count)) {
        std::iota(all_.begin(), all_.end(), 0);
        for (const std::int32_t job : all_)
            options_.emplace_back(kept_.option.begin() + kept_.begin[job],
                                  kept_.option.begin() + kept_.begin[job + 1]);
        likely_.resize(all_.size());
    }

    Found run(const Effort& effort, std::int32_t* choice) {
        Choice given(all_.size()), plain(all_.size());
        for (const std::int32_t job : all_) {
            given[job] = jobs_.option[job] + choice[job];
            plain[job] = jobs_.option[job];
        }
        offer(given);
        uniform();
        offer_prices();
        const double bound = lower_bound(
            jobs_, simulator_.machine, usage_, kept_, effort.rounds, [this](const Choice& choice) {
                if (!spent()) offer(choice);
                note_likely(choice);
                return seconds_;
            });
        incumbent_.adopt(best_);
        sweep(likely_);
        sweep(options_);
        incumbent_.adopt(plain);
        improve_all(by_size(), likely_);
        sweep(likely_);
        incumbent_.adopt(best_);
        neighbourhoods(bound);
        for (const std::int32_t job : all_) choice[job] = best_[job] - jobs_.option[job];
        return {seconds_, bound, incumbent_.evaluations()};
    }

  private:
    // Whether the effort is used up; called before every trial.
    bool spent() {
        interrupt_(100 * std::int64_t{jobs_.count});
        return incumbent_.evaluations() >= limit_;
    }

    void keep() {
        if (incumbent_.seconds() >= seconds_) return;
        seconds_ = incumbent_.seconds();
        best_ = incumbent_.choice();
    }

    void offer(const Choice& choice) {
        incumbent_.adopt(choice);
        keep();
    }

    // Tries one option for all jobs; jobs with fewer options take their last.
    void uniform() {
        std::int32_t most = 0;
        for (const std::int32_t job : all_)
            most = std::max(most, jobs_.option[job + 1] - jobs_.option[job]);
        Choice choice(all_.size());
        for (std::int32_t i = 0; i < most && !spent(); ++i) {
            for (const std::int32_t job : all_)
                choice[job] = std::min(jobs_.option[job] + i, jobs_.option[job + 1] - 1);
            offer(choice);
        }
    }

    // Tries the cheapest options if each resource has a price: all prices equal, and random
    // mixtures.
    void offer_prices() {
        Choice choice(all_.size());
        for (int mixture = 0; mixture <= 16 && !spent(); ++mixture) {
            const Prices prices = mixture == 0 ? Prices{1, 1, 1, 1, 1} : random_prices();
            for (const std::int32_t job : all_) choice[job] = cheapest(job, prices);
            offer(choice);
        }
    }

    Prices random_prices() {
        Prices prices;
        for (double& price : prices) {
            const double unit = random_.unit();
            price = unit / (1.0 - unit);  // as often above one as below
        }
        return prices;
    }

    std::int32_t cheapest(std::int32_t job, const Prices& prices) const {
        double low = never;
        std::int32_t option = kept_.option[kept_.begin[job]];
        for (std::int32_t i = kept_.begin[job]; i < kept_.begin[job + 1]; ++i) {
            const Usage& usage = usage_[kept_.option[i]];
            double cost = 0.0;
            for (int r = 0; r < resources; ++r) cost += prices[r] * usage.on[r];
            if (cost < low) {
                low = cost;
                option = kept_.option[i];
            }
        }
        return option;
    }

    // Returns jobs by size, largest first, and of equals the later first: the order of Espresso's
    // Algorithm 1. The seconds of the first option represent the size.
    Choice by_size() const {
        Choice order(all_.rbegin(), all_.rend());
        std::stable_sort(order.begin(), order.end(), [this](std::int32_t a, std::int32_t b) {
            return usage_[jobs_.option[a]].total > usage_[jobs_.option[b]].total;
        });
        return order;
    }

    // Records what was best for some prices of the bound: a few options per job.
    void note_likely(const Choice& choice) {
        for (const std::int32_t job : all_) {
            Choice& own = likely_[job];
            if (std::find(own.begin(), own.end(), choice[job]) == own.end())
                own.push_back(choice[job]);
        }
    }

    // Gives one job the best of some options; returns whether it changed.
    bool improve(std::int32_t job, const Choice& options) {
        double best = incumbent_.seconds();
        std::int32_t better = -1;
        for (const std::int32_t option : options) {
            if (spent()) break;
            if (option == incumbent_.choice()[job]) continue;
            const double seconds = incumbent_.trial(job, option, best * less);
            if (seconds < best) {
                best = seconds;
                better = option;
            }
        }
        if (better >= 0) incumbent_.change(job, better);
        return better >= 0;
    }

    bool improve_all(const Choice& jobs, const std::vector<Choice>& options) {
        bool changed = false;
        for (const std::int32_t job : jobs) changed |= improve(job, options[job]);
        return changed;
    }

    // Improves from the last job to the first, so that the states before a job stay valid, until
    // nothing changes.
    void sweep(const std::vector<Choice>& options) {
        const Choice back(all_.rbegin(), all_.rend());
        while (improve_all(back, options) && !spent()) {}
        keep();
    }

    // Gives some jobs other options and then improves them; keeps the result if it is not worse.
    void neighbourhoods(double bound) {
        if (all_.empty()) return;
        Choice before, after;
        while (!spent() && seconds_ * enough > bound) {
            const Choice jobs = random_.below(2) ? window() : scattered();
            before.clear();
            for (const std::int32_t job : jobs) before.push_back(incumbent_.choice()[job]);
            destroy(jobs, after);
            const double limit = seconds_;
            incumbent_.change(jobs, after);
            // Half of the time nothing is improved: job by job, some changes would only be undone.
            const int rounds = random_.below(2) ? 3 : 0;
            for (int round = 0; round < rounds && improve_all(jobs, options_); ++round) {}
            if (incumbent_.seconds() <= limit) {
                keep();
            } else {
                incumbent_.change(jobs, before);
            }
        }
    }

    // Returns consecutive jobs.
    Choice window() {
        const std::int32_t size = std::min(jobs_.count, 2 + random_.below(7));
        const std::int32_t first = random_.below(jobs_.count - size + 1);
        return {all_.begin() + first, all_.begin() + first + size};
    }

    // Returns random jobs, each once.
    Choice scattered() {
        const std::int32_t size = std::min(jobs_.count, 2 + random_.below(4));
        Choice jobs;
        while (static_cast<std::int32_t>(jobs.size()) < size) {
            const std::int32_t job = random_.below(jobs_.count);
            if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) jobs.push_back(job);
        }
        return jobs;
    }

    // Chooses options by random prices, at random among the kept ones, or among all: with several
    // lanes even a dominated option can be the best.
    void destroy(const Choice& jobs, Choice& options) {
        const std::int32_t kind = random_.below(4);
        const Prices prices = random_prices();
        options.clear();
        for (const std::int32_t job : jobs) {
            const Choice& kept = options_[job];
            const std::int32_t first = jobs_.option[job], count = jobs_.option[job + 1] - first;
            options.push_back(kind < 2    ? cheapest(job, prices)
                              : kind == 2 ? kept[random_.below(std::ssize(kept))]
                                          : first + random_.below(count));
        }
    }

    const Jobs& jobs_;
    Interrupt& interrupt_;
    Simulator simulator_;
    std::vector<Usage> usage_;
    Kept kept_;
    Incumbent incumbent_;
    Random random_;
    double limit_, seconds_ = never;
    Choice all_, best_;
    std::vector<Choice> options_, likely_;  // options to try: all kept, or a few
};

}  // namespace

Found search(const Jobs& jobs, const Machine& machine, const Effort& effort, std::int32_t* choice,
             Interrupt& interrupt) {
    if (jobs.count == 0) return {machine.backward, machine.backward, 0.0};
    return Search(jobs, machine, effort, interrupt).run(effort, choice);
}

}  // namespace gradwire
