#include "link_bounds.hpp"

namespace gradwire {
namespace {

constexpr double least_slack = 2e-5;  // of the limit

// A group before a completion.
Tail before(const Group& g, const Tail& x) {
    const double delay = g.lane == Lane::gpu ? g.encode : 0, link = g.send + x[2];
    const double cpu = g.lane == Lane::cpu ? g.encode + std::max(x[1], link) : x[1];
    const double sent = g.ready + (g.lane == Lane::cpu ? cpu : delay + link);
    return {g.decode + std::max(delay + x[0], sent), g.decode + cpu, g.decode + link};
}

bool at_most(const Tail& x, const Tail& y, double slack) {
    return x[0] <= y[0] + slack && x[1] <= y[1] + slack && x[2] <= y[2] + slack;
}

void lower(Tail& x, const Tail& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::min(x[i], y[i]);
}

}  // namespace

Bounds::Bounds(const LinkProblem& p, const std::vector<std::size_t>& stops, const Paths& paths,
               double limit, std::size_t longest, Interrupt& interrupt)
    : p_(p), stops_(stops), paths_(paths), limit_(limit), longest_(longest), interrupt_(interrupt),
      least_slack_(std::max(least_slack * limit, std::numeric_limits<double>::min())),
      slack_(least_slack_), fronts_(stops.size()), least_(stops.size()) {
    fronts_.back() = {Tail{p.last(), 0, 0}};  // the link ends last
    least_.back() = fronts_.back().front();
    for (std::size_t stop = stops.size() - 1; stop-- > 0;) {
        collect(stop);
        thin(stop);
    }
}

double Bounds::operator()(const Clocks& c, std::size_t stop) const {
    const double known = paths_(c, stop);
    if (known >= limit_) return known;
    double best = infinity;
    for (const Tail& x : fronts_[stop]) {
        best = std::min(best, std::max(std::max(c.delay + x[0], c.cpu + x[1]), c.link + x[2]));
        if (best <= known) break;
    }
    return std::max(best, known);
}

// All completions of a stop that may end before the limit.
void Bounds::collect(std::size_t stop) {
    const std::size_t first = stops_[stop];
    found_.clear();
    std::array<Tail, 8> latest;  // found: many that follow are nowhere below one of them
    for (Tail& x : latest) x.fill(infinity);
    for (std::size_t next = stop + 1; next < stops_.size(); ++next) {
        if (stops_[next] - first > p_.max_span) break;
        for (const LinkOption& by : p_.options) {
            interrupt_(100 + 10 * std::ssize(fronts_[next]));
            const Group g = group_of(p_, first, stops_[next], by);
            if (paths_.after(before(g, least_[next]), stop) >= limit_) continue;
            for (const Tail& x : fronts_[next]) {
                const Tail y = before(g, x);
                const double end = paths_.after(y, stop);
                bool useless = end >= limit_;
                for (const Tail& other : latest) useless |= at_most(other, y, 0);
                if (useless) continue;
                latest[found_.size() % latest.size()] = y;
                found_.emplace_back(end, y);
            }
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
        interrupt_(10 + 3 * std::ssize(front));
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
