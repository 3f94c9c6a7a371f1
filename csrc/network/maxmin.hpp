// Flows that share links fairly, event by event; the face is gradwire/network/engines/flow.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "../interrupt.hpp"

namespace gradwire {

// Lists of numbers, one after the other: list i is value[start[i] .. start[i + 1]).
struct Lists {
    const std::int64_t* start;
    const std::int64_t* value;
};

// Each flow represents `many` equal flows. It uses links, each with a part of its rate, and starts
// `delay` seconds after the last flow that it waits for has ended.
struct FlowSet {
    std::size_t n, links;
    Lists uses;          // links of each flow
    const double* part;  // for each use, its part of the flow's rate
    const double* bytes;
    const double* many;
    Lists next;  // flows that wait for each flow
    const double* delay;
    const double* rate;  // of each link, bytes per second
};

// The links that flows use, and the rates of links, from time `since` (seconds) on.
struct Change {
    double since;
    Lists uses;
    const double* part;
    const double* rate;
};

class MaxMin {
  public:
    // tolerance: a flow's end is taken together with those up to this fraction of its duration
    // later, so rates are not recomputed between; 0: exact. changes: ascending in time.
    MaxMin(const FlowSet& set, double tolerance, Interrupt& interrupt,
           std::vector<Change> changes = {});
    // Writes the seconds at which each starts and ends. Returns how many times rates were computed.
    std::size_t run(double* begin, double* end);
    // Fair rates of all flows at once: no flow can have more without a slower one having less.
    void rates(double* rate);

  private:
    using Waiting = std::pair<double, std::int64_t>;  // seconds and a flow, or a share and a link
    using Queue = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;
    struct Link {
        double left, weight;  // bytes per second, and the sum of weights of the flows
    };
    struct alignas(64) Flow {  // all that freeze() reads, in one cache line
        double rate;           // bytes per second
        std::uint32_t first, uses;
        std::uint32_t link[12];  // if uses is 12 or less
    };

    const std::uint32_t* links_of(const Flow& flow) const {
        return flow.uses <= 12 ? flow.link : used_.data() + flow.first;
    }
    double weight(const Flow& flow, std::uint32_t use) const {
        return is_plain_ ? 1.0 : weights_[flow.first + use];
    }
    bool is_open(std::size_t flow) const { return open_[flow / 64] >> flow % 64 & 1; }
    void lay_out();
    double next_change() const;
    void change();
    void rebuild();
    void share();
    void freeze(std::size_t link, double share);
    void done(std::size_t flow, double now, double* end);
    void admit(double now, double* begin, double* end);

    FlowSet set_;
    std::vector<Change> changes_;
    std::size_t changed_ = 0;  // how many of them have happened
    double tolerance_;
    Interrupt& interrupt_;
    bool is_plain_;                      // every use has weight 1
    bool is_stale_ = true;               // members and weights are outdated
    std::size_t gone_ = 0;               // flows that ended since rebuild()
    std::vector<Flow> flows_;
    std::vector<std::uint32_t> used_;    // links, flow by flow
    std::vector<double> weights_;        // of each use, unless is_plain_
    std::vector<std::uint64_t> open_;    // flows that are not decided, a bit each
    std::vector<std::uint32_t> begin_, end_, members_;  // flows of link i: [begin_[i], end_[i])
    std::vector<std::size_t> touched_;   // links
    std::vector<Link> full_, now_;       // before sharing, and during it
    std::vector<std::int64_t> active_, before_;  // before_: how many flows each still waits for
    std::vector<double> left_, ready_;   // of flows: bytes, seconds
    Queue waiting_;
};

}  // namespace gradwire
