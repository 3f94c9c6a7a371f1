#include "hashed.hpp"

#include <algorithm>
#include <vector>

namespace gradwire {

void slowest_links(const HashedFlows& flows, const Tiers& tiers, const Ports& ports,
                   std::uint64_t seed, std::size_t samples, double* longest,
                   Interrupt& interrupt) {
    const auto links = static_cast<std::size_t>(tiers.links());
    const auto ends = static_cast<std::size_t>(ports.ends());
    std::vector<std::int64_t> load(links);
    std::vector<double> at_port(ends), per_amount(links, 0.0);
    for (std::size_t i = 0; i < links; ++i)
        if (tiers.rates[i] > 0) per_amount[i] = 1.0 / static_cast<double>(tiers.rates[i]);
    for (std::size_t sample = 0; sample < samples; ++sample) {
        std::fill(load.begin(), load.end(), 0);
        std::copy_n(ports.before, ends, at_port.begin());
        const Dice dice(seed + sample);
        std::uint64_t index = 0;
        for (std::size_t i = 0; i < flows.n; ++i) {
            interrupt(10 * flows.parts);
            const std::int64_t* own =
                flows.paths ? flows.paths + flows.pair[i] * flows.most : nullptr;
            for (std::int64_t part = 0; part < flows.parts; ++part) {
                const std::int64_t number = pick(dice(index++), flows.counts[i]);
                const std::int64_t path = own ? own[number] : number;
                const Hops hops = tiers.hops(flows.source[i], flows.target[i], path);
                for (std::size_t h = 0; h < hops.count; ++h)
                    load[static_cast<std::size_t>(hops.link[h])] += flows.amount[i];
                if (ports.count == 0) continue;
                for (const std::int64_t port : ports.of(i, path, tiers.cores, hops.count == 4))
                    at_port[static_cast<std::size_t>(port)] += static_cast<double>(flows.amount[i]);
            }
        }
        interrupt(static_cast<std::int64_t>(links + ends));
        double most = 0.0;
        for (std::size_t i = 0; i < ends; ++i)
            if (at_port[i] > 0.0)
                most = std::max(most, at_port[i] / static_cast<double>(ports.rates[i]));
        for (std::size_t i = 0; i < links; ++i)
            most = std::max(most, static_cast<double>(load[i]) * per_amount[i]);
        longest[sample] = most;
    }
}

}  // namespace gradwire
