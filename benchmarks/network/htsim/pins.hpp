// For a comparison of simulators on the same paths: data packets of flows that the file $PINS names go
// by the switches that it says. A line is a flow, how many ways it has, for each the switch above
// its leaf, and for each the core (of no meaning where there is none); packet i takes way i, round
// and round. All else, acknowledgements too, goes by htsim's own hash.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <unordered_map>
#include <vector>

#include "switch.h"
#include "uecpacket.h"

namespace pins {

struct Ways {
    std::vector<std::uint32_t> above, core;
};

inline const std::unordered_map<std::uint32_t, Ways>& all() {
    static const auto read = [] {
        std::unordered_map<std::uint32_t, Ways> found;
        const char* name = std::getenv("PINS");
        std::ifstream file(name ? name : "");
        std::uint32_t flow;
        for (std::size_t count; file >> flow >> count;) {
            Ways& ways = found[flow];
            ways.above.resize(count), ways.core.resize(count);
            for (auto& own : ways.above) file >> own;
            for (auto& own : ways.core) file >> own;
        }
        return found;
    }();
    return read;
}

// The place among the next hops of the switch that this packet is to go to, else what was chosen.
template <class Hops>
std::uint32_t choice(Packet& packet, bool is_leaf, const Hops& hops, std::uint32_t chosen) {
    if (packet.type() != UECDATA) return chosen;
    const auto found = all().find(packet.flow_id());
    if (found == all().end()) return chosen;
    const auto& to = is_leaf ? found->second.above : found->second.core;
    const auto number = static_cast<UecDataPacket&>(packet).epsn();
    for (std::uint32_t i = 0; i < hops.size(); ++i) {
        auto* next = dynamic_cast<Switch*>(hops[i]->getEgressPort()->at(2));
        if (next && next->getID() == to[number % to.size()]) return i;
    }
    return chosen;
}

}  // namespace pins
