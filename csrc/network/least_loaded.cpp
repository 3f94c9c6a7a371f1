#include "least_loaded.hpp"

#include <limits>

namespace gradwire {

namespace {

struct Wait {
    double longest = std::numeric_limits<double>::infinity(), sum = 0.0;
    bool operator<(const Wait& other) const {
        return longest < other.longest || (longest == other.longest && sum < other.sum);
    }
};

double seconds(const Tiers& tiers, const double* load, std::int64_t link, double amount) {
    return (load[link] + amount) / static_cast<double>(tiers.rates[link]);
}

bool works(const Tiers& tiers, const Hops& hops) {
    for (std::size_t i = 0; i < hops.count; ++i)
        if (tiers.rates[hops.link[i]] == 0) return false;
    return true;
}

Wait wait_for(const Tiers& tiers, const double* load, const Hops& hops, double amount) {
    Wait wait{0.0, 0.0};
    for (std::size_t i = 0; i < hops.count; ++i) {
        const double own = seconds(tiers, load, hops.link[i], amount);
        wait.longest = own > wait.longest ? own : wait.longest;
        wait.sum += own;
    }
    return wait;
}

// Returns the best of `count`, tried in turn from `first` on; cost returns the wait of one, or
// infinity.
template <class Cost>
std::int64_t best_of(std::int64_t count, std::int64_t first, Cost cost) {
    Wait best;
    std::int64_t found = first;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t one = first + i < count ? first + i : first + i - count;
        const Wait wait = cost(one);
        if (wait < best) best = wait, found = one;
    }
    return found;
}

template <class Choose>
void place(const Pieces& pieces, const Tiers& tiers, double* load, std::int64_t* path,
           Interrupt& interrupt, Choose choose) {
    for (std::size_t i = 0; i < pieces.n; ++i) {
        interrupt(10 * tiers.paths(pieces.source[i], pieces.target[i]));
        path[i] = choose(i, pieces.source[i], pieces.target[i],
                         static_cast<double>(pieces.amount[i]));
        const Hops hops = tiers.hops(pieces.source[i], pieces.target[i], path[i]);
        for (std::size_t h = 0; h < hops.count; ++h)
            load[hops.link[h]] += static_cast<double>(pieces.amount[i]);
    }
}

}  // namespace

void least_loaded(const Pieces& pieces, const Tiers& tiers, std::uint64_t seed, double* load,
                  std::int64_t* path, Interrupt& interrupt) {
    const Dice dice(seed);
    place(pieces, tiers, load, path, interrupt,
          [&](std::size_t i, std::int64_t source, std::int64_t target, double amount) {
              const std::int64_t count = tiers.paths(source, target);
              return best_of(count, pick(dice(i), count), [&](std::int64_t one) {
                  const Hops hops = tiers.hops(source, target, one);
                  return works(tiers, hops) ? wait_for(tiers, load, hops, amount) : Wait{};
              });
          });
}

void least_loaded_locally(const Pieces& pieces, const Tiers& tiers, std::uint64_t seed,
                          double* load, std::int64_t* path, Interrupt& interrupt) {
    const Dice dice(seed);
    place(pieces, tiers, load, path, interrupt,
          [&](std::size_t i, std::int64_t source, std::int64_t target, double amount) {
              const bool far = tiers.crosses(source, target);
              const auto open = [&](std::int64_t uplink, std::int64_t core) {
                  const std::int64_t one = far ? uplink * tiers.cores + core : uplink;
                  return works(tiers, tiers.hops(source, target, one));
              };
              const auto some_core = [&](std::int64_t uplink) {
                  for (std::int64_t core = 0; core < (far ? tiers.cores : 1); ++core)
                      if (open(uplink, core)) return true;
                  return false;
              };
              const auto waits = [&](std::int64_t link) {
                  return Wait{seconds(tiers, load, link, amount), 0.0};
              };
              const std::uint32_t draw = dice(i);
              const std::int64_t uplink =
                  best_of(tiers.uplinks, pick(draw, tiers.uplinks), [&](std::int64_t one) {
                      return some_core(one) ? waits(source * tiers.uplinks + one) : Wait{};
                  });
              if (!far) return uplink;
              return uplink * tiers.cores +
                     best_of(tiers.cores, pick(draw, tiers.cores), [&](std::int64_t core) {
                         return open(uplink, core) ? waits(tiers.core_up(source, uplink, core))
                                                   : Wait{};
                     });
          });
}

}  // namespace gradwire
