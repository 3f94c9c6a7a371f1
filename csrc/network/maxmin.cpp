// Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5): the link with the
// smallest share for each of its flows fills up first; its flows get that share, and the rest goes
// on without them. Shares only grow, so a queue of links ordered by old shares suffices: a link
// whose share has grown is pushed again.
#include "maxmin.hpp"

#include <algorithm>
#include <limits>

namespace gradwire {

namespace {

constexpr double rounding = 1e-12;
constexpr double nothing = 1e-9;  // rounding that is left when all of a sum is subtracted
constexpr std::uint32_t ahead = 16;  // flows whose cache lines are prefetched

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

bool all_one(const double* values, std::size_t n) {
    return std::all_of(values, values + n, [](double value) { return value == 1.0; });
}

}  // namespace

MaxMin::MaxMin(const FlowSet& set, double tolerance, Interrupt& interrupt,
               std::vector<Change> changes)
    : set_(set), changes_(std::move(changes)), tolerance_(tolerance), interrupt_(interrupt),
      flows_(set.n), open_(set.n / 64 + 1, 0), begin_(set.links, 0), end_(set.links, 0),
      full_(set.links), now_(set.links), before_(set.n, 0), left_(set.bytes, set.bytes + set.n),
      ready_(set.n, 0.0) {
    lay_out();
    for (std::size_t i = 0; i < set.n; ++i)
        for (std::int64_t k = set.next.start[i]; k < set.next.start[i + 1]; ++k)
            ++before_[at(set.next.value[k])];
}

// Copies the links and weights of each flow to where they are read.
void MaxMin::lay_out() {
    used_.assign(set_.uses.value, set_.uses.value + set_.uses.start[set_.n]);
    is_plain_ = all_one(set_.many, set_.n) && all_one(set_.part, used_.size());
    for (std::size_t i = 0; i < set_.n; ++i) {
        const auto first = static_cast<std::uint32_t>(set_.uses.start[i]);
        const auto uses = static_cast<std::uint32_t>(set_.uses.start[i + 1]) - first;
        flows_[i] = {0.0, first, uses, {}};
        if (uses <= 12) std::copy_n(used_.begin() + first, uses, flows_[i].link);
    }
    if (!is_plain_) {
        weights_.assign(set_.part, set_.part + used_.size());
        for (std::size_t i = 0; i < set_.n; ++i)
            for (std::uint32_t u = 0; u < flows_[i].uses; ++u)
                weights_[flows_[i].first + u] *= set_.many[i];
    }
    is_stale_ = true;
}

double MaxMin::next_change() const {
    return changed_ < changes_.size() ? changes_[changed_].since
                                      : std::numeric_limits<double>::infinity();
}

void MaxMin::change() {
    const Change& now = changes_[changed_++];
    set_.uses = now.uses;
    set_.part = now.part;
    set_.rate = now.rate;
    lay_out();
}

void MaxMin::rates(double* rate) {
    active_.resize(set_.n);
    for (std::size_t i = 0; i < set_.n; ++i) active_[i] = static_cast<std::int64_t>(i);
    share();
    for (std::size_t i = 0; i < set_.n; ++i) rate[i] = flows_[i].rate;
}

// Finds the flows of each link. The lists stay usable while flows only leave, because freeze()
// skips decided flows.
void MaxMin::rebuild() {
    for (const std::size_t link : touched_) begin_[link] = end_[link] = 0;
    touched_.clear();
    std::size_t uses = 0;
    for (const std::int64_t active : active_) {
        const Flow& flow = flows_[at(active)];
        uses += flow.uses;
        for (std::uint32_t u = 0; u < flow.uses; ++u) {
            const std::size_t link = links_of(flow)[u];
            if (end_[link]++ == 0) {
                touched_.push_back(link);
                full_[link] = {set_.rate[link], 0.0};
            }
            full_[link].weight += weight(flow, u);
        }
    }
    members_.resize(uses);
    std::uint32_t place = 0;
    for (const std::size_t link : touched_) {
        begin_[link] = place;
        place += end_[link];
        end_[link] = begin_[link];
    }
    for (const std::int64_t active : active_) {
        const Flow& flow = flows_[at(active)];
        for (std::uint32_t u = 0; u < flow.uses; ++u)
            members_[end_[links_of(flow)[u]]++] = static_cast<std::uint32_t>(active);
    }
    is_stale_ = false;
    gone_ = 0;
}

void MaxMin::freeze(std::size_t link, double share) {
    for (std::uint32_t m = begin_[link]; m < end_[link]; ++m) {
        if (m + ahead < end_[link] && is_open(members_[m + ahead]))
            __builtin_prefetch(&flows_[members_[m + ahead]], 1);
        const std::size_t number = members_[m];
        if (!is_open(number)) continue;
        interrupt_(10 * std::int64_t{flows_[number].uses});
        open_[number / 64] &= ~(std::uint64_t{1} << number % 64);
        Flow& flow = flows_[number];
        flow.rate = share;
        for (std::uint32_t u = 0; u < flow.uses; ++u) {
            Link& other = now_[links_of(flow)[u]];
            const double counts = weight(flow, u);
            other.left = std::max(other.left - share * counts, 0.0);
            other.weight -= counts;
        }
    }
}

void MaxMin::share() {
    if (is_stale_ || gone_ > active_.size()) rebuild();
    for (const std::int64_t flow : active_)
        open_[at(flow) / 64] |= std::uint64_t{1} << at(flow) % 64;
    std::vector<Waiting> shares;
    shares.reserve(touched_.size());
    for (const std::size_t link : touched_) {
        now_[link] = full_[link];
        if (full_[link].weight > nothing)
            shares.emplace_back(full_[link].left / full_[link].weight, link);
    }
    Queue queue(std::greater<>{}, std::move(shares));
    while (!queue.empty()) {
        interrupt_();
        const auto [old, number] = queue.top();
        queue.pop();
        const std::size_t link = at(number);
        if (now_[link].weight <= nothing) continue;  // all of its flows are decided
        const double now = now_[link].left / now_[link].weight;
        if (now > old * (1 + rounding))
            queue.emplace(now, number);
        else
            freeze(link, now);
    }
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

// Makes ready flows active; flows without bytes end at once.
void MaxMin::admit(double now, double* begin, double* end) {
    while (!waiting_.empty() && waiting_.top().first <= now) {
        interrupt_(100);
        const auto [when, flow] = waiting_.top();
        waiting_.pop();
        begin[flow] = when;
        if (set_.bytes[flow] > 0.0) {
            active_.push_back(flow);
            is_stale_ = true;
        } else {
            done(at(flow), when, end);
        }
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
        while (next_change() <= now) change();
        admit(now, begin, end);
        if (active_.empty()) continue;
        interrupt_(10 * std::ssize(active_));
        share();
        ++rounds;
        const auto ends_at = [&](std::size_t flow) {
            const double rate = flows_[flow].rate;
            return rate > 0.0 ? now + left_[flow] / rate : never;
        };
        double until = never, lasted = 0.0;
        for (const std::int64_t flow : active_) {
            const double ends = ends_at(at(flow));
            if (ends < until) until = ends, lasted = ends - begin[flow];
        }
        if (!waiting_.empty()) until = std::min(until, waiting_.top().first);
        until = std::min(until + tolerance_ * lasted, next_change());
        if (until == never) break;  // all flows that are left use links of rate 0
        const double limit = until * (1 + rounding);
        double last = 0.0;
        std::size_t kept = 0;
        for (const std::int64_t active : active_) {
            const Flow& flow = flows_[at(active)];
            const double ends = ends_at(at(active));
            if (ends > limit) {
                active_[kept++] = active;
                continue;
            }
            for (std::uint32_t u = 0; u < flow.uses; ++u)
                full_[links_of(flow)[u]].weight -= weight(flow, u);
            ++gone_;
            last = std::max(last, ends);
            done(at(active), ends, end);
        }
        if (kept < active_.size()) until = std::min(until, last);  // the others need not wait
        active_.resize(kept);
        for (const std::int64_t active : active_)
            left_[at(active)] -= flows_[at(active)].rate * (until - now);
        now = until;
    }
    return rounds;
}

}  // namespace gradwire
