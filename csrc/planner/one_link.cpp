#include "one_link.hpp"

#include <array>
#include <tuple>

#include "link_bounds.hpp"

namespace gradwire {
namespace {

using Stops = std::vector<std::size_t>;

constexpr double rounding = 1e-12;     // gains below this part of the time are none
constexpr std::size_t coarse = 48;     // stops of the first search among many tensors
constexpr std::size_t few = 64;        // tensors that need none
constexpr std::size_t coarse_labels = 32;
constexpr std::size_t first_width = 8, widening = 4;
constexpr std::size_t least_front = 8, longest_front = 256;
constexpr double least_slack = 2e-5;   // of the time
constexpr std::size_t effort = 1 << 25;  // rounds before a sweep, times stops squared: from
constexpr std::size_t least_rounds = 8, most_rounds = 80;

// What decides the rest, clocks that no longer matter raised to those that do, and their sum.
using Key = std::array<double, 5>;

Key key_of(const Clocks& c, double next, double groups) {
    const double begin = next + c.delay;
    const double cpu = std::max(c.cpu, begin), link = std::max(c.link, begin);
    return {c.delay, cpu, link, groups, c.delay + cpu + link + groups};
}

bool at_most(const Key& x, const Key& y, double slack) {
    bool all = true;
    for (std::size_t i = 0; i < 3; ++i) all &= x[i] <= y[i] + slack;
    return all && (x[3] <= y[3] || slack == infinity);
}

// One way to do all tensors before a stop.
struct Label {
    Clocks clocks;
    Key key{};
    double bound = 0;
    std::size_t parent = 0, end = 0;
    std::int32_t option = 0, groups = 0;
};

class Search {
public:
    Search(const LinkProblem& p, double tolerance, Interrupt& interrupt)
        : p_(p), tolerance_(tolerance), interrupt_(interrupt) {}

    LinkPlan solve(std::size_t max_labels);

private:
    // What a better plan takes at most.
    double goal() const { return best_.seconds / (1 + tolerance_) * (1 - rounding); }
    void offer(const std::vector<std::int32_t>& ends, const std::vector<std::int32_t>& options);
    void even_cuts();
    Stops coarse_stops() const;
    void play(Paths& paths, std::size_t stops);
    double widen(const Stops& stops, Paths& paths, std::size_t max_labels);
    double sweep(const Stops& stops, const Bounds& bounds, std::size_t width);
    void extend(const Stops& stops, const Bounds& bounds, std::size_t stop);
    void extend_by(const Group& g, std::size_t from, const Label& like, const Stops& stops,
                   const Bounds& bounds, std::size_t stop);
    void finish(const Label& last);
    double keep(std::size_t width);
    bool thinned(std::size_t width, double slack, double& dropped);

    const LinkProblem& p_;
    const double tolerance_;
    Interrupt& interrupt_;
    LinkPlan best_;
    double slack_ = 0;
    std::vector<Label> labels_, fresh_;
    std::vector<std::size_t> first_;  // label of each stop
    std::vector<Clocks> earliest_;    // of each stop's labels
};

void Search::offer(const std::vector<std::int32_t>& ends,
                   const std::vector<std::int32_t>& options) {
    interrupt_(100 * std::ssize(ends));
    if (ends.size() > p_.max_groups) return;
    Clocks clocks;
    std::size_t first = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
        const auto end = static_cast<std::size_t>(ends[i]);
        clocks.add(group_of(p_, first, end, p_.options[static_cast<std::size_t>(options[i])]));
        first = end;
    }
    if (clocks.link >= best_.seconds * (1 - rounding)) return;
    best_.seconds = clocks.link;
    best_.ends = ends;
    best_.options = options;
}

// Few groups first, then twice as many; one option for all.
void Search::even_cuts() {
    const std::size_t most = std::min(p_.n, p_.max_groups);
    std::vector<std::int32_t> ends;
    for (std::size_t groups = (p_.n + p_.max_span - 1) / p_.max_span;;
         groups = std::min(2 * groups, most)) {
        ends.clear();
        for (std::size_t g = 1; g <= groups; ++g)
            ends.push_back(static_cast<std::int32_t>(g * p_.n / groups));
        for (std::size_t o = 0; o < p_.options.size(); ++o)
            offer(ends, std::vector<std::int32_t>(groups, static_cast<std::int32_t>(o)));
        if (groups == most) return;
    }
}

// Even in tensors, size and time together.
Stops Search::coarse_stops() const {
    const double size = p_.position[p_.n], time = p_.last();
    Stops stops{0};
    std::size_t part = 0;
    for (std::size_t end = 1; end < p_.n; ++end) {
        double share = static_cast<double>(end) / static_cast<double>(p_.n);
        share += size > 0 ? p_.position[end] / size : 0;
        share += time > 0 ? p_.ready[end - 1] / time : 0;
        const auto reached = static_cast<std::size_t>(share * coarse / 3);
        if (reached > part) stops.push_back(end);
        part = reached;
    }
    stops.push_back(p_.n);
    return stops;
}

LinkPlan Search::solve(std::size_t max_labels) {
    even_cuts();
    Stops all(p_.n + 1);
    for (std::size_t i = 0; i <= p_.n; ++i) all[i] = i;
    Paths paths(p_, all, interrupt_);
    if (p_.n > few) {
        const Stops some = coarse_stops();
        Paths rough(p_, some, interrupt_);
        widen(some, rough, coarse_labels);
        paths.begin_like(rough);
    }
    const double proved = widen(all, paths, max_labels);
    best_.lower_bound = proved < goal() ? proved : best_.seconds / (1 + tolerance_);
    return best_;
}

// Paths against plans, some of which are better than any before.
void Search::play(Paths& paths, std::size_t stops) {
    std::size_t rounds = std::clamp(effort / (stops * stops), least_rounds, most_rounds);
    std::vector<std::int32_t> ends, options;
    for (; rounds > 0 && paths.bound < goal(); --rounds) {
        paths.play(goal(), ends, options);
        if (!ends.empty()) offer(ends, options);
    }
    paths.look_back();
}

// Wider and wider sweeps until one drops nothing; a lower bound on plans that cut at the stops.
double Search::widen(const Stops& stops, Paths& paths, std::size_t max_labels) {
    double proved = 0;
    for (std::size_t width = std::min(first_width, max_labels);; width *= widening) {
        play(paths, stops.size());
        proved = std::max(proved, paths.bound);
        if (proved >= goal()) return proved;
        const std::size_t longest = std::clamp(2 * width, least_front, longest_front);
        const Bounds bounds(p_, stops, paths, goal(), longest, interrupt_);
        proved = std::max(proved, bounds(Clocks{}, 0));
        if (proved >= goal()) return proved;
        proved = std::max(proved, sweep(stops, bounds, width));
        if (proved >= goal() || width * widening > max_labels) return proved;
    }
}

// Labels of stop after stop; the least bound of those that were dropped for want of room.
double Search::sweep(const Stops& stops, const Bounds& bounds, std::size_t width) {
    labels_.assign(1, Label{});
    first_.assign(stops.size() + 1, 1);
    first_[0] = 0;
    earliest_.assign(stops.size(), Clocks{});
    slack_ = 0;
    double dropped = infinity;
    for (std::size_t stop = 1; stop < stops.size(); ++stop) {
        extend(stops, bounds, stop);
        if (stop + 1 == stops.size()) break;
        first_[stop] = labels_.size();
        dropped = std::min(dropped, keep(width));
        first_[stop + 1] = labels_.size();
        if (first_[stop] == labels_.size()) continue;
        earliest_[stop] = labels_[first_[stop]].clocks;
        for (std::size_t i = first_[stop]; i < labels_.size(); ++i)
            earliest_[stop].lower_to(labels_[i].clocks);
    }
    best_.labels += labels_.size();
    return dropped;
}

// Every label of an earlier stop, by every option, to this one.
void Search::extend(const Stops& stops, const Bounds& bounds, std::size_t stop) {
    fresh_.clear();
    for (std::size_t from = 0; from < stop; ++from) {
        const std::size_t first = stops[from], end = stops[stop];
        if (end - first > p_.max_span || first_[from] == first_[from + 1]) continue;
        for (std::size_t o = 0; o < p_.options.size(); ++o) {
            Label like;
            like.end = end;
            like.option = static_cast<std::int32_t>(o);
            extend_by(group_of(p_, first, end, p_.options[o]), from, like, stops, bounds, stop);
        }
    }
}

void Search::extend_by(const Group& g, std::size_t from, const Label& like, const Stops& stops,
                       const Bounds& bounds, std::size_t stop) {
    Clocks least = earliest_[from];
    least.add(g);
    interrupt_(1000 * static_cast<std::int64_t>(1 + first_[from + 1] - first_[from]));
    if (bounds(least, stop) >= goal()) return;
    const bool ends = stop + 1 == stops.size(), counted = p_.max_groups < p_.n;
    for (std::size_t i = first_[from]; i < first_[from + 1]; ++i) {
        const Label& before = labels_[i];
        Label next = like;
        next.groups = before.groups + 1;
        if (static_cast<std::size_t>(next.groups) + !ends > p_.max_groups) continue;
        next.clocks = before.clocks;
        next.clocks.add(g);
        next.bound = std::max(before.bound, bounds(next.clocks, stop));
        if (next.bound >= goal()) continue;
        next.parent = i;
        if (ends) {
            finish(next);
        } else {
            next.key = key_of(next.clocks, p_.ready[stops[stop]],
                              counted ? next.groups : 0);
            fresh_.push_back(next);
        }
    }
}

void Search::finish(const Label& last) {
    const double seconds = last.clocks.link;
    if (seconds >= goal()) return;
    best_.seconds = seconds;
    best_.ends.clear();
    best_.options.clear();
    for (const Label* label = &last; label->groups > 0; label = &labels_[label->parent]) {
        best_.ends.push_back(static_cast<std::int32_t>(label->end));
        best_.options.push_back(label->option);
    }
    std::reverse(best_.ends.begin(), best_.ends.end());
    std::reverse(best_.options.begin(), best_.options.end());
}

// The fresh labels that no other replaces; with too many, those near another go too.
double Search::keep(std::size_t width) {
    std::stable_sort(fresh_.begin(), fresh_.end(), [](const Label& x, const Label& y) {
        return std::tie(x.bound, x.key[4], x.groups) < std::tie(y.bound, y.key[4], y.groups);
    });
    const double least =
        std::max(least_slack * best_.seconds, std::numeric_limits<double>::min());
    double dropped = infinity;
    if (thinned(width, 0, dropped)) return dropped;
    // Clocks are nowhere further apart than the best time; what is left then differs in groups.
    slack_ = std::max(slack_ / 2, least);
    while (!thinned(width, slack_, dropped)) slack_ = slack_ < best_.seconds ? 2 * slack_ : infinity;
    slack_ = std::min(slack_, best_.seconds);
    return dropped;
}

bool Search::thinned(std::size_t width, double slack, double& dropped) {
    const std::size_t first = labels_.size();
    dropped = infinity;
    for (const Label& label : fresh_) {
        interrupt_(10 * static_cast<std::int64_t>(1 + labels_.size() - first));
        std::size_t i = first;
        while (i < labels_.size() && !at_most(labels_[i].key, label.key, slack)) ++i;
        if (i < labels_.size()) {
            if (!at_most(labels_[i].key, label.key, 0)) dropped = std::min(dropped, label.bound);
        } else if (labels_.size() - first == width) {
            labels_.resize(first);
            return false;
        } else {
            labels_.push_back(label);
        }
    }
    return true;
}

}  // namespace

LinkPlan plan_link(const LinkProblem& problem, double tolerance, std::size_t max_labels,
                   Interrupt& interrupt) {
    return Search(problem, tolerance, interrupt).solve(max_labels);
}

}  // namespace gradwire
