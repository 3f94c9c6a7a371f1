// The links of a path between leaves; gradwire/network/fabric.py has pictures.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Hops {
    std::array<std::int64_t, 4> link;
    std::size_t count;
};

// A fabric as arrays. Links are ordered: up from leaves, down to leaves, up to cores, down from
// cores.
struct Tiers {
    std::int64_t leaves, uplinks, cores, pods;
    const std::int64_t* pod_of;
    const std::int64_t* rates;

    std::int64_t low() const { return leaves * uplinks; }
    std::int64_t high() const { return pods * uplinks * cores; }
    std::int64_t links() const { return 2 * (low() + high()); }
    bool crosses(std::int64_t source, std::int64_t target) const {
        return pod_of[source] != pod_of[target];
    }
    std::int64_t core_up(std::int64_t leaf, std::int64_t uplink, std::int64_t core) const {
        return 2 * low() + (pod_of[leaf] * uplinks + uplink) * cores + core;
    }
    std::int64_t paths(std::int64_t source, std::int64_t target) const {
        return crosses(source, target) ? uplinks * cores : uplinks;
    }
    Hops hops(std::int64_t source, std::int64_t target, std::int64_t path) const {
        const bool far = crosses(source, target);
        const std::int64_t uplink = far ? path / cores : path;
        const std::int64_t up = source * uplinks + uplink;
        const std::int64_t down = low() + target * uplinks + uplink;
        if (!far) return {{up, down, 0, 0}, 2};
        const std::int64_t core = path % cores;
        return {{up, down, core_up(source, uplink, core),
                 high() + core_up(target, uplink, core)}, 4};
    }
};

// The ports of hosts, if their times count too: count, of each host, is 0 if they do not. Arrays of
// ports have all those up, by host and port, then all those down.
struct Ports {
    std::int64_t count, hosts;
    const std::int64_t* source;  // the hosts of each flow, or piece, between leaves
    const std::int64_t* target;
    const std::int64_t* plane_of;  // the port that each uplink serves
    const std::int64_t* rates;
    const double* before;  // amounts that take no path between leaves

    std::int64_t ends() const { return 2 * hosts * count; }
    // Returns the ports, up and down, that a path takes. is_far: it is one between pods.
    std::array<std::int64_t, 2> of(std::size_t flow, std::int64_t path, std::int64_t cores,
                                   bool is_far) const {
        const std::int64_t port = plane_of[is_far ? path / cores : path];
        return {source[flow] * count + port, (hosts + target[flow]) * count + port};
    }
};

// The same random numbers in C++ and Python (gradwire/network/dice.py): 32 bits for each index.
inline std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

class Dice {
  public:
    explicit Dice(std::uint64_t seed) : key_(mixed(seed + golden)) {}
    std::uint32_t operator()(std::uint64_t index) const {
        return static_cast<std::uint32_t>(mixed(key_ + (index + 1) * golden) >> 32);
    }

  private:
    static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;
    std::uint64_t key_;
};

// Returns a number below count, chosen by 32 random bits.
inline std::int64_t pick(std::uint32_t draw, std::int64_t count) {
    return static_cast<std::int64_t>((static_cast<std::uint64_t>(draw) *
                                      static_cast<std::uint64_t>(count)) >> 32);
}

}  // namespace gradwire
