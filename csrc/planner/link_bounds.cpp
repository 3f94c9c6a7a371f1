#include "link_bounds.hpp"

namespace gradwire {
namespace {

constexpr double least_slack = 2e-5;  // of the limit

constexpr int parts = 4;  // shares are multiples of a quarter

// All means of the lanes that options use, but for the link alone, which fronts know better.
std::vector<Shares> shares_of(const LinkProblem& p) {
    bool gpu = false, cpu = false;
    for (const LinkOption& by : p.options) {
        gpu |= by.lane == Lane::gpu;
        cpu |= by.lane == Lane::cpu;
    }
    std::vector<Shares> all;
    for (int compute = 0; compute <= (gpu ? parts : 0); ++compute)
        for (int worker = compute == 0; worker <= (cpu ? parts - compute : 0); ++worker)
            all.push_back({1.0 * (parts - compute - worker) / parts, 1.0 * compute / parts,
                           1.0 * worker / parts});
    return all;
}

// A group before a completion.
Tail before(const Group& g, const Tail& x) {
    const double sent = g.send + std::max(x[1], g.decode);
    const double delay = g.lane == Lane::gpu ? g.encode : 0;
    Tail y{std::max(x[0] + delay, g.ready + g.encode + sent), sent, x[2] + delay, x[3]};
    if (g.lane == Lane::gpu) y[3] += g.encode + g.decode;
    if (g.lane == Lane::cpu)
        y[2] = std::max(x[2] + g.decode, g.ready + g.encode + g.decode);
    return y;
}

bool at_most(const Tail& x, const Tail& y, double slack) {
    return x[0] <= y[0] + slack && x[1] <= y[1] + slack && x[2] <= y[2] + slack &&
           x[3] <= y[3] + slack;
}

void lower(Tail& x, const Tail& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::min(x[i], y[i]);
}

// What is nowhere above another does not come after it.
double weight(const Tail& x) { return x[0] + x[1] + std::max(x[2], 0.0) + x[3]; }

}  // namespace

Bounds::Bounds(const LinkProblem& p, const std::vector<std::size_t>& stops, double limit,
               std::size_t longest)
    : p_(p), stops_(stops), limit_(limit), longest_(longest),
      least_slack_(std::max(least_slack * limit, std::numeric_limits<double>::min())),
      slack_(least_slack_), shares_(shares_of(p)),
      loads_(stops.size() * shares_.size(), infinity), fronts_(stops.size()),
      least_(stops.size()) {
    load();
    const Tail nothing{p.last(), 0, -infinity, 0};
    fronts_.back() = {nothing};
    least_.back() = nothing;
    for (std::size_t stop = stops.size() - 1; stop-- > 0;) {
        collect(stop);
        thin(stop);
    }
}

double Bounds::operator()(const Clocks& c, std::size_t stop) const {
    const double last = p_.last(), known = c.end(last);
    if (stop + 1 == stops_.size()) return known;
    const double link = std::max(c.link, p_.ready[stops_[stop]] + c.delay);
    const double debt = c.delay + c.cpu_debt, compute = last + c.delay + c.gpu_debt;
    double best = infinity;
    for (const Tail& x : fronts_[stop]) {
        const double end = std::max(std::max(c.delay + x[0], link + x[1]),
                                    std::max(debt + x[2], compute + x[3]));
        best = std::min(best, end);
        if (best <= known) break;
    }
    return std::max(std::max(best, known), mean(c, stop));
}

// The mean of the lanes' ends, if nothing waits from here on.
double Bounds::mean(const Clocks& c, std::size_t stop) const {
    const double begin = p_.ready[stops_[stop]] + c.delay;
    const double link = std::max(c.link, begin), compute = p_.last() + c.delay + c.gpu_debt;
    const double cpu = std::max(c.cpu + c.cpu_debt, begin);
    double end = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
        const Shares& share = shares_[i];
        const double load = loads_[stop * shares_.size() + i];
        end = std::max(end, share[0] * link + share[1] * compute + share[2] * cpu + load);
    }
    return end;
}

// The least load of each stop's completions, for every mean.
void Bounds::load() {
    const std::size_t means = shares_.size();
    std::fill(loads_.end() - static_cast<std::ptrdiff_t>(means), loads_.end(), 0.0);
    for (std::size_t stop = stops_.size() - 1; stop-- > 0;) {
        for (std::size_t next = stop + 1; next < stops_.size(); ++next) {
            if (stops_[next] - stops_[stop] > p_.max_span) break;
            for (const LinkOption& by : p_.options)
                add_load(group_of(p_, stops_[stop], stops_[next], by), &loads_[next * means],
                         &loads_[stop * means]);
        }
    }
}

void Bounds::add_load(const Group& g, const double* then, double* least) const {
    const double work = g.encode + g.decode;
    const double gpu = g.lane == Lane::gpu ? work : 0, cpu = g.lane == Lane::cpu ? work : 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
        const Shares& share = shares_[i];
        const double load = share[0] * g.send + share[1] * gpu + share[2] * cpu + then[i];
        least[i] = std::min(least[i], load);
    }
}

// All completions of a stop that may end before the limit.
void Bounds::collect(std::size_t stop) {
    const std::size_t first = stops_[stop];
    const double earliest = first == 0 ? 0 : p_.ready[first - 1], last = p_.last();
    const auto late = [&](const Tail& x) {
        return x[0] >= limit_ || x[1] + earliest >= limit_ || x[2] >= limit_ ||
               x[3] + last >= limit_;
    };
    found_.clear();
    for (std::size_t next = stop + 1; next < stops_.size(); ++next) {
        if (stops_[next] - first > p_.max_span) break;
        for (const LinkOption& by : p_.options) {
            const Group g = group_of(p_, first, stops_[next], by);
            if (fronts_[next].empty() || late(before(g, least_[next]))) continue;
            for (const Tail& x : fronts_[next])
                if (const Tail y = before(g, x); !late(y)) found_.emplace_back(weight(y), y);
        }
    }
    std::sort(found_.begin(), found_.end());
}

void Bounds::thin(std::size_t stop) {
    std::vector<Tail>& front = fronts_[stop];
    if (!thinned(front, 0))
        for (slack_ = std::max(slack_ / 2, least_slack_); !thinned(front, slack_);) slack_ *= 1.5;
    Tail& least = least_[stop];
    least.fill(infinity);
    for (const Tail& x : front) lower(least, x);
}

// What is above another by slack at most is united with it; false if too many are left.
bool Bounds::thinned(std::vector<Tail>& front, double slack) const {
    front.clear();
    for (const auto& [_, y] : found_) {
        auto near = front.begin();
        while (near != front.end() && !at_most(*near, y, slack)) ++near;
        if (near != front.end()) {
            lower(*near, y);
        } else {
            if (front.size() == longest_) return false;
            front.push_back(y);
        }
    }
    return true;
}

}  // namespace gradwire
