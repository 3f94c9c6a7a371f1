// Ports of hosts are further links here, which do not fail, behind those between switches. Loads
// are changed for one failure and changed back, so the cost of a failure is proportional to
// the pieces that it moves. The slowest of the untouched links is the first of them in the order
// from before the failure.
#include "failures.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace gradwire {

namespace {

class Sweep {
  public:
    Sweep(const Pieces& pieces, const std::int64_t* path, const Tiers& tiers, const Ports& ports,
          Interrupt& interrupt)
        : pieces_(pieces), path_(path), tiers_(tiers), ports_(ports), interrupt_(interrupt),
          links_(static_cast<std::size_t>(tiers.links() + ports.ends())),
          rates_(tiers.rates, tiers.rates + tiers.links()),
          load_(static_cast<std::size_t>(tiers.links()), 0.0), first_(links_ + 1, 0),
          stamp_(links_, 0), chosen_(pieces.n, 0) {
        rates_.insert(rates_.end(), ports.rates, ports.rates + ports.ends());
        load_.insert(load_.end(), ports.before, ports.before + ports.ends());
        for (std::size_t i = 0; i < pieces.n; ++i)
            each_link(i, path[i], [&](std::size_t link) {
                load_[link] += static_cast<double>(pieces.amount[i]);
                ++first_[link + 1];
            });
        std::partial_sum(first_.begin(), first_.end(), first_.begin());
        std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
        on_link_.resize(first_.back());
        for (std::size_t i = 0; i < pieces.n; ++i)
            each_link(i, path[i], [&](std::size_t link) { on_link_[next[link]++] = i; });
        slowest_first_.resize(links_);
        std::iota(slowest_first_.begin(), slowest_first_.end(), std::size_t{0});
        std::sort(slowest_first_.begin(), slowest_first_.end(),
                  [this](std::size_t a, std::size_t b) { return seconds(a) > seconds(b); });
    }

    double without(const std::int64_t* begin, const std::int64_t* end, std::uint64_t seed,
                   std::int64_t& moved) {
        ++now_;
        moving_.clear();
        for (const std::int64_t* link = begin; link != end; ++link) {
            const auto failed = static_cast<std::size_t>(*link);
            rates_[failed] = 0;
            for (std::size_t m = first_[failed]; m < first_[failed + 1]; ++m)
                if (chosen_[on_link_[m]] != now_) {
                    chosen_[on_link_[m]] = now_;
                    moving_.push_back(on_link_[m]);
                }
        }
        moved = static_cast<std::int64_t>(moving_.size());
        std::sort(moving_.begin(), moving_.end());
        const double worst = go_around(seed);
        for (const std::int64_t* link = begin; link != end; ++link)
            rates_[static_cast<std::size_t>(*link)] = tiers_.rates[*link];
        return worst;
    }

  private:
    template <class Visit>
    void each_link(std::size_t piece, std::int64_t path, Visit visit) const {
        const Hops hops = tiers_.hops(pieces_.source[piece], pieces_.target[piece], path);
        for (std::size_t h = 0; h < hops.count; ++h) visit(static_cast<std::size_t>(hops.link[h]));
        each_port(piece, path, visit);
    }

    template <class Visit>
    void each_port(std::size_t piece, std::int64_t path, Visit visit) const {
        if (ports_.count == 0) return;
        const bool is_far = tiers_.crosses(pieces_.source[piece], pieces_.target[piece]);
        for (const std::int64_t port : ports_.of(piece, path, tiers_.cores, is_far))
            visit(static_cast<std::size_t>(tiers_.links() + port));
    }

    double seconds(std::size_t link) const {
        if (load_[link] <= 0.0) return 0.0;
        return rates_[link] > 0 ? load_[link] / static_cast<double>(rates_[link])
                                : std::numeric_limits<double>::infinity();
    }

    double go_around(std::uint64_t seed) {
        source_.clear(), target_.clear(), amount_.clear();
        touched_.clear();
        for (const std::size_t piece : moving_) {
            source_.push_back(pieces_.source[piece]);
            target_.push_back(pieces_.target[piece]);
            amount_.push_back(pieces_.amount[piece]);
            change(piece, path_[piece], -static_cast<double>(pieces_.amount[piece]));
        }
        other_.resize(moving_.size());
        Tiers broken = tiers_;
        broken.rates = rates_.data();
        least_loaded({moving_.size(), source_.data(), target_.data(), amount_.data()}, broken,
                     seed, load_.data(), other_.data(), interrupt_);
        double worst = 0.0;
        for (std::size_t i = 0; i < moving_.size(); ++i) {
            const auto amount = static_cast<double>(pieces_.amount[moving_[i]]);
            each_link(moving_[i], other_[i], [&](std::size_t link) { touch(link); });
            each_port(moving_[i], other_[i], [&](std::size_t port) { load_[port] += amount; });
        }
        for (const std::size_t link : touched_) worst = std::max(worst, seconds(link));
        for (const std::size_t link : slowest_first_)
            if (stamp_[link] != now_) {
                worst = std::max(worst, seconds(link));
                break;
            }
        for (std::size_t i = 0; i < moving_.size(); ++i) {
            const auto amount = static_cast<double>(pieces_.amount[moving_[i]]);
            change(moving_[i], other_[i], -amount);
            change(moving_[i], path_[moving_[i]], amount);
        }
        return worst;
    }

    void touch(std::size_t link) {
        if (stamp_[link] != now_) {
            stamp_[link] = now_;
            touched_.push_back(link);
        }
    }

    void change(std::size_t piece, std::int64_t path, double amount) {
        each_link(piece, path, [&](std::size_t link) {
            touch(link);
            load_[link] += amount;
        });
    }

    const Pieces& pieces_;
    const std::int64_t* path_;
    const Tiers& tiers_;
    const Ports& ports_;
    Interrupt& interrupt_;
    std::size_t links_;
    std::vector<std::int64_t> rates_;
    std::vector<double> load_;  // whole numbers, so that subtraction is exact
    std::vector<std::size_t> first_, on_link_, slowest_first_;
    std::vector<std::uint64_t> stamp_, chosen_;
    std::vector<std::size_t> moving_, touched_;
    std::vector<std::int64_t> source_, target_, amount_, other_;
    std::uint64_t now_ = 0;
};

}  // namespace

void sweep_failures(const Pieces& pieces, const std::int64_t* path, const Tiers& tiers,
                    const Ports& ports, const FailureSets& sets, std::uint64_t seed,
                    double* slowest, std::int64_t* moved, Interrupt& interrupt) {
    Sweep sweep(pieces, path, tiers, ports, interrupt);
    for (std::size_t i = 0; i < sets.n; ++i) {
        interrupt(1000);
        slowest[i] = sweep.without(sets.links + sets.start[i], sets.links + sets.start[i + 1],
                                   seed, moved[i]);
    }
}

}  // namespace gradwire
