// Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5): the link with the
// smallest share for each of its flows is full first; they get it, and the rest goes on without
// them. Shares only grow, so a queue of links by old shares needs no other order: one that has
// grown is put back.
#include "maxmin.hpp"

#include <algorithm>
#include <limits>

namespace gradwire {

namespace {

constexpr double undecided = -1.0;
constexpr double rounding = 1e-12;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

MaxMin::MaxMin(const FlowSet& set, double tolerance)
    : set_(set), tolerance_(tolerance), before_(set.n, 0), rate_(set.n, 0.0), left_(set.n),
      ready_(set.n, 0.0), capacity_(set.links), weight_(set.links, 0.0),
      first_(set.links + 1, 0), open_(set.links, 0) {
    std::copy_n(set.bytes, set.n, left_.begin());
    for (std::size_t i = 0; i < set.n; ++i)
        for (std::int64_t k = set.next.start[i]; k < set.next.start[i + 1]; ++k)
            ++before_[at(set.next.value[k])];
}

void MaxMin::rates(double* rate) {
    active_.resize(set_.n);
    for (std::size_t i = 0; i < set_.n; ++i) active_[i] = static_cast<std::int64_t>(i);
    share();
    std::copy(rate_.begin(), rate_.end(), rate);
}

void MaxMin::freeze(std::int64_t link, double share) {
    const auto begin = at(first_[at(link)]);
    for (std::size_t m = begin; m < begin + at(open_[at(link)]); ++m) {
        const std::size_t flow = at(members_[m]);
        if (rate_[flow] != undecided) continue;
        rate_[flow] = share;
        for (std::int64_t u = set_.uses.start[flow]; u < set_.uses.start[flow + 1]; ++u) {
            const std::size_t other = at(set_.uses.value[u]);
            const double weight = set_.part[u] * set_.many[flow];
            capacity_[other] = std::max(capacity_[other] - share * weight, 0.0);
            weight_[other] -= weight;
        }
    }
}

void MaxMin::share() {
    touched_.clear();
    std::size_t uses = 0;
    for (const std::int64_t flow : active_) {
        rate_[at(flow)] = undecided;
        for (std::int64_t u = set_.uses.start[flow]; u < set_.uses.start[flow + 1]; ++u) {
            const std::size_t link = at(set_.uses.value[u]);
            if (open_[link]++ == 0) {
                touched_.push_back(static_cast<std::int64_t>(link));
                capacity_[link] = set_.rate[link];
                weight_[link] = 0.0;
            }
            weight_[link] += set_.part[u] * set_.many[flow];
            ++uses;
        }
    }
    members_.resize(uses);
    std::int64_t place = 0;
    for (const std::int64_t link : touched_) {
        first_[at(link)] = place;
        place += open_[at(link)];
        open_[at(link)] = 0;
    }
    for (const std::int64_t flow : active_)
        for (std::int64_t u = set_.uses.start[flow]; u < set_.uses.start[flow + 1]; ++u) {
            const std::size_t link = at(set_.uses.value[u]);
            members_[at(first_[link] + open_[link]++)] = flow;
        }
    std::vector<Waiting> shares;
    shares.reserve(touched_.size());
    for (const std::int64_t link : touched_)
        shares.emplace_back(capacity_[at(link)] / weight_[at(link)], link);
    Queue queue(std::greater<>{}, std::move(shares));
    while (!queue.empty()) {
        const auto [old, link] = queue.top();
        queue.pop();
        const double weight = weight_[at(link)];
        if (weight <= rounding) continue;  // all of its flows are decided
        const double now = capacity_[at(link)] / weight;
        if (now > old * (1 + rounding))
            queue.emplace(now, link);
        else
            freeze(link, now);
    }
    for (const std::int64_t link : touched_) open_[at(link)] = 0;
}

void MaxMin::done(std::size_t flow, double now, double* end) {
    end[flow] = now;
    for (std::int64_t k = set_.next.start[flow]; k < set_.next.start[flow + 1]; ++k) {
        const std::size_t other = at(set_.next.value[k]);
        ready_[other] = std::max(ready_[other], now);
        if (--before_[other] == 0)
            waiting_.emplace(ready_[other] + set_.delay[other], static_cast<std::int64_t>(other));
    }
}

// What is ready becomes active; what moves nothing has ended at once.
void MaxMin::admit(double now, double* begin, double* end) {
    while (!waiting_.empty() && waiting_.top().first <= now) {
        const auto [when, flow] = waiting_.top();
        waiting_.pop();
        begin[flow] = when;
        if (set_.bytes[flow] > 0.0)
            active_.push_back(flow);
        else
            done(at(flow), when, end);
    }
}

std::size_t MaxMin::run(double* begin, double* end) {
    constexpr double never = std::numeric_limits<double>::infinity();
    std::fill_n(begin, set_.n, never);
    std::fill_n(end, set_.n, never);
    for (std::size_t i = 0; i < set_.n; ++i)
        if (before_[i] == 0) waiting_.emplace(set_.delay[i], static_cast<std::int64_t>(i));
    double now = 0.0;
    std::size_t rounds = 0;
    while (!waiting_.empty() || !active_.empty()) {
        if (active_.empty()) now = std::max(now, waiting_.top().first);
        admit(now, begin, end);
        if (active_.empty()) continue;
        share();
        ++rounds;
        double until = never, lasted = 0.0;
        for (const std::int64_t flow : active_) {
            const double ends = now + left_[at(flow)] / rate_[at(flow)];
            if (ends < until) until = ends, lasted = ends - begin[flow];
        }
        if (!waiting_.empty() && waiting_.top().first < until) {
            until = waiting_.top().first;
        }
        until += tolerance_ * lasted;
        if (until == never) break;  // what is left has links of rate 0
        const double limit = until * (1 + rounding);
        std::size_t kept = 0;
        for (const std::int64_t flow : active_) {
            const double ends = now + left_[at(flow)] / rate_[at(flow)];
            if (ends <= limit) {
                done(at(flow), ends, end);
            } else {
                left_[at(flow)] -= rate_[at(flow)] * (until - now);
                active_[kept++] = flow;
            }
        }
        active_.resize(kept);
        now = until;
    }
    return rounds;
}

}  // namespace gradwire
