#include "link_paths.hpp"

#include <cmath>

namespace gradwire {
namespace {

constexpr double memory = 0.8;     // of lengths, from round to round
constexpr double most_step = 3;    // of a weight's logarithm
constexpr double gain = 1e-5;      // a bound that rises less is as it was
constexpr int patience = 8;        // rounds without a gain
constexpr double shorter = 0.7;    // steps after them

// log(e^x + e^y)
double log_sum(double x, double y) {
    const double low = std::min(x, y), high = std::max(x, y);
    return low == -infinity ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace

Paths::Paths(const LinkProblem& p, const std::vector<std::size_t>& stops, Interrupt& interrupt)
    : p_(p), stops_(stops), interrupt_(interrupt), last_(stops.size() - 1), row_(last_), costs_(p.options.size()),
      shares_(stops.size()), lengths_(stops.size()), newest_(stops.size()), now_(stops.size()),
      best_(stops.size()), next_(last_), by_(last_) {
    bool cpu = false;
    for (std::size_t o = 0; o < costs_.size(); ++o) {
        const LinkOption& by = p.options[o];
        cpu |= by.lane == Lane::cpu;
        costs_[o].reserve(last_ * (last_ + 1) / 2);
        for (std::size_t stop = 0; stop < last_; ++stop) {
            row_[stop] = costs_[o].size();
            for (std::size_t end = stop + 1; end <= last_; ++end) {
                if (stops[end] - stops[stop] > p.max_span) break;
                interrupt(30);
                const Group g = group_of(p, stops[stop], stops[end], by);
                costs_[o].push_back({g.encode, g.send, g.decode});
            }
        }
    }
    logs_.assign(stops.size(), {0, cpu ? 0 : -infinity, 0});
    best_.back().link = 1;
}

void Paths::begin_like(const Paths& other) {
    std::size_t at = 1;
    for (std::size_t stop = 1; stop <= last_; ++stop) {
        while (other.stops_[at] < stops_[stop]) ++at;
        logs_[stop] = other.logs_[at];
    }
}

void Paths::play(double goal, std::vector<std::int32_t>& ends,
                 std::vector<std::int32_t>& options) {
    weigh();
    minimise();
    const double found = now_[0].rest;
    idle_ = found > bound * (1 + gain) ? 0 : idle_ + 1;
    if (found > bound) {
        bound = found;
        best_ = now_;
    } else if (idle_ >= patience) {
        step_ *= shorter;
        idle_ = 0;
    }
    if (found == infinity) return;
    ends.clear();
    options.clear();
    for (std::size_t stop = 0; stop < last_; stop = next_[stop]) {
        ends.push_back(static_cast<std::int32_t>(stops_[next_[stop]]));
        options.push_back(static_cast<std::int32_t>(by_[stop]));
    }
    lengthen();
    learn(goal - found);
}

// The shares of turns in all paths, and where the paths are between them.
void Paths::weigh() {
    double back = -infinity, away = -infinity, all = -infinity;
    for (std::size_t stop = last_; stop > 0; --stop) {
        shares_[stop].away = logs_[stop].away + back;
        back = log_sum(back, logs_[stop].back);
    }
    for (std::size_t stop = 1; stop <= last_; ++stop) {
        shares_[stop].back = logs_[stop].back + away;
        away = log_sum(away, logs_[stop].away);
        newest_[stop] = away == -infinity ? 0 : std::exp(logs_[stop].away - away);
        all = log_sum(all, log_sum(logs_[stop].direct, shares_[stop].back));
    }
    double delay = 0, link = 0;
    for (std::size_t stop = last_; stop > 0; --stop) {
        Turns& share = shares_[stop];
        share = {std::exp(logs_[stop].direct - all), std::exp(share.away - all),
                 std::exp(share.back - all)};
        now_[stop].delay = delay;
        delay += share.direct + share.away;
    }
    for (std::size_t stop = 1; stop <= last_; ++stop) {
        link += shares_[stop].direct + shares_[stop].back;
        now_[stop].link = std::min(link, 1 - now_[stop].delay);
    }
    now_[0] = {1, 0, 0, 0};
    now_[last_] = {0, 1, 0, 0};
}

// Of paths through one group.
inline double Paths::mean(const Cost& cost, Lane lane, const Mean& at, const Mean& to,
                          double ready) const {
    const double sum = ready * (at.delay - to.delay) + to.link * cost.send + cost.decode;
    if (lane == Lane::gpu) return sum + at.delay * cost.encode;
    return lane == Lane::cpu ? sum + (1 - at.link - to.delay) * cost.encode : sum;
}

// The least mean of all plans.
void Paths::minimise() {
    for (std::size_t stop = last_; stop-- > 0;) {
        const Mean& at = now_[stop];
        double least = infinity;
        for (std::size_t o = 0; o < costs_.size(); ++o) {
            interrupt_(10 * static_cast<std::int64_t>(last_ - stop));
            const Lane lane = p_.options[o].lane;
            const Cost* cost = &costs_[o][row_[stop]];
            for (std::size_t end = stop + 1; end <= last_; ++end, ++cost) {
                if (stops_[end] - stops_[stop] > p_.max_span) break;
                const double sum = mean(*cost, lane, at, now_[end], p_.ready[stops_[end] - 1]) +
                                   now_[end].rest;
                if (sum < least) {
                    least = sum;
                    next_[stop] = end;
                    by_[stop] = o;
                }
            }
        }
        now_[stop].rest = least;
    }
}

// The least mean of all that comes before a stop.
void Paths::look_back() {
    for (std::size_t end = 1; end <= last_; ++end) best_[end].before = infinity;
    for (std::size_t stop = 0; stop < last_; ++stop) {
        for (std::size_t o = 0; o < costs_.size(); ++o) {
            interrupt_(10 * static_cast<std::int64_t>(last_ - stop));
            const Lane lane = p_.options[o].lane;
            const Cost* cost = &costs_[o][row_[stop]];
            for (std::size_t end = stop + 1; end <= last_; ++end, ++cost) {
                if (stops_[end] - stops_[stop] > p_.max_span) break;
                Mean& to = best_[end];
                const double sum = mean(*cost, lane, best_[stop], to, p_.ready[stops_[end] - 1]);
                to.before = std::min(to.before, best_[stop].before + sum);
            }
        }
    }
}

// Adds how much longer than the others the plan makes paths that turn at a stop.
void Paths::lengthen() {
    std::vector<Turns> more(last_ + 1);
    for (std::size_t stop = 0; stop < last_; stop = next_[stop]) {
        const std::size_t end = next_[stop];
        const Cost& cost = costs_[by_[stop]][row_[stop] + end - stop - 1];
        const Lane lane = p_.options[by_[stop]].lane;
        const double ready = p_.ready[stops_[end] - 1], cpu = lane == Lane::cpu ? cost.encode : 0;
        more[stop].away -= ready + (lane == Lane::gpu ? cost.encode : 0);
        more[end].away += ready + cpu;
        more[stop].back -= cpu;
        more[end].back += cost.send;
    }
    double away = 0, back = 0;
    for (std::size_t stop = last_; stop > 0; --stop) {
        if (stop < last_) {
            away += more[stop].away;
            back += more[stop].back;
        }
        Turns& length = lengths_[stop];
        length.away = away + memory * length.away;
        length.back = back + memory * length.back;
        length.direct = length.away + length.back;
    }
}

// Changes weights, the more the more is missing to a known time (Polyak's rule).
void Paths::learn(double missing) {
    double middle = 0, spread = 0, most = 0;
    for (std::size_t stop = 1; stop <= last_; ++stop) {
        const Turns &share = shares_[stop], &length = lengths_[stop];
        middle += share.direct * length.direct + share.away * length.away +
                  share.back * length.back;
    }
    double mean = 0, variance = 0;  // of the lengths of paths that turned to the worker
    for (std::size_t stop = 1; stop <= last_; ++stop) {
        const Turns &share = shares_[stop], &length = lengths_[stop];
        const double direct = length.direct - middle, back = mean + length.back - middle;
        spread += share.direct * direct * direct + share.back * (back * back + variance);
        most = std::max(most, std::abs(direct));
        const double part = newest_[stop], off = length.away - mean;
        mean += part * off;
        variance = (1 - part) * (variance + part * off * off);
    }
    if (!(most > 0)) return;
    double step = most_step / most;
    if (step_ * missing < step * spread) step = step_ * missing / spread;
    for (std::size_t stop = 1; stop <= last_; ++stop) {
        logs_[stop].direct += step * lengths_[stop].direct;
        logs_[stop].away += step * lengths_[stop].away;
        logs_[stop].back += step * lengths_[stop].back;
    }
}

}  // namespace gradwire
