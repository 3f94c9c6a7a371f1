#include "hashed.hpp"

#include <algorithm>
#include <vector>

namespace gradwire {

void slowest_links(const Hashed& flows, const Tiers& tiers, std::uint64_t seed,
                   std::size_t samples, double* longest, Interrupt& interrupt) {
    const auto links = static_cast<std::size_t>(tiers.links());
    std::vector<std::int64_t> load(links);
    std::vector<double> per_amount(links, 0.0);
    for (std::size_t i = 0; i < links; ++i)
        if (tiers.rates[i] > 0) per_amount[i] = 1.0 / static_cast<double>(tiers.rates[i]);
    for (std::size_t sample = 0; sample < samples; ++sample) {
        std::fill(load.begin(), load.end(), 0);
        const Dice dice(seed + sample);
        std::uint64_t index = 0;
        for (std::size_t i = 0; i < flows.n; ++i) {
            interrupt(10 * flows.parts);
            const std::int64_t* own =
                flows.paths ? flows.paths + flows.pair[i] * flows.most : nullptr;
            for (std::int64_t part = 0; part < flows.parts; ++part) {
                const std::int64_t number = pick(dice(index++), flows.counts[i]);
                const Hops hops =
                    tiers.hops(flows.source[i], flows.target[i], own ? own[number] : number);
                for (std::size_t h = 0; h < hops.count; ++h)
                    load[static_cast<std::size_t>(hops.link[h])] += flows.amount[i];
            }
        }
        interrupt(static_cast<std::int64_t>(links));
        double most = 0.0;
        for (std::size_t i = 0; i < links; ++i)
            most = std::max(most, static_cast<double>(load[i]) * per_amount[i]);
        longest[sample] = most;
    }
}

}  // namespace gradwire
