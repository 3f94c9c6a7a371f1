// One link and the lanes beside it: what a group costs, and what it does to the lanes' clocks.
// Sources and meaning: gradwire/planner/joint.py. Nothing is checked here; gradwire/kernels does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace gradwire {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Seconds against a size: piecewise linear through rows of (size, seconds, slope after it).
struct Curve {
    const double* row;
    std::size_t rows;

    double operator()(double size) const {
        std::size_t after = rows;
        while (after > 0 && row[3 * (after - 1)] > size) --after;
        if (after == 0) return row[1];
        const double* const at = row + 3 * (after - 1);
        const double value = at[1] + (size - at[0]) * at[2];
        return after == rows ? value : std::min(value, at[4]);
    }
};

enum class Lane : std::int32_t { none, gpu, cpu };

struct LinkOption {
    Lane lane;
    Curve encode, send, decode;
};

// Tensors in the order of backward: ready (n,), and position (n + 1,), the sizes' sums.
struct LinkProblem {
    const double* ready;
    const double* position;
    std::size_t n;
    std::vector<LinkOption> options;
    std::size_t max_span, max_groups;

    double last() const { return ready[n - 1]; }
};

struct Group {
    Lane lane;
    double ready, encode, send, decode;
};

// Tensors first ... end - 1 by one option.
inline Group group_of(const LinkProblem& p, std::size_t first, std::size_t end,
                      const LinkOption& by) {
    const double size = p.position[end] - p.position[first];
    return {by.lane, p.ready[end - 1], by.encode(size), by.send(size), by.decode(size)};
}

// The lanes' clocks after some groups. Decodes come last of all; they take as long if they come
// first of all, so every clock includes them. delay: of what backward computes.
struct Clocks {
    double delay = 0, cpu = 0, link = 0;

    void add(const Group& g) {
        cpu += g.decode;
        link += g.decode;
        delay += g.lane == Lane::gpu ? g.decode + g.encode : g.decode;
        double encoded = g.ready + delay;
        if (g.lane == Lane::cpu) encoded = cpu = std::max(cpu, encoded) + g.encode;
        link = std::max(link, encoded) + g.send;
    }

    // The earlier of each.
    void lower_to(const Clocks& x) {
        delay = std::min(delay, x.delay);
        cpu = std::min(cpu, x.cpu);
        link = std::min(link, x.link);
    }
};

}  // namespace gradwire
