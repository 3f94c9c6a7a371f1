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

// The state of all lanes after some groups. debt: decodes so far; done: their end, at least.
struct Clocks {
    double delay = 0, link = 0, cpu = 0, gpu_debt = 0, gpu_done = 0, cpu_debt = 0, cpu_done = 0;

    void add(const Group& g) {
        double encoded = g.ready + delay;
        if (g.lane == Lane::gpu) {
            delay += g.encode;
            encoded = g.ready + delay;
        } else if (g.lane == Lane::cpu) {
            encoded = cpu = std::max(cpu, encoded) + g.encode;
        }
        link = std::max(link, encoded) + g.send;
        if (g.lane == Lane::gpu) {
            gpu_debt += g.decode;
            gpu_done = std::max(gpu_done, link) + g.decode;
        } else if (g.lane == Lane::cpu) {
            cpu_debt += g.decode;
            cpu_done = std::max(std::max(cpu_done, link) + g.decode, cpu + cpu_debt);
        }
    }

    // When all lanes have ended; last: when the last gradient is ready if nothing delays it.
    double end(double last) const {
        return std::max(std::max(link, last + delay + gpu_debt), std::max(gpu_done, cpu_done));
    }

    // The earlier of each.
    void lower_to(const Clocks& x) {
        delay = std::min(delay, x.delay);
        link = std::min(link, x.link);
        cpu = std::min(cpu, x.cpu);
        gpu_debt = std::min(gpu_debt, x.gpu_debt);
        gpu_done = std::min(gpu_done, x.gpu_done);
        cpu_debt = std::min(cpu_debt, x.cpu_debt);
        cpu_done = std::min(cpu_done, x.cpu_done);
    }
};

}  // namespace gradwire
