// Flows that share links fairly, event by event: gradwire/network/engines/flow.py has the face.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "../interrupt.hpp"

namespace gradwire {

// Rows of numbers, one after the other: row i is [start[i], start[i + 1]).
struct Rows {
    const std::int64_t* start;
    const std::int64_t* value;
};

// Every flow stands for `many` that are alike. It uses links, each by a part of its rate, and
// starts `delay` seconds after the last flow before it has ended.
struct FlowSet {
    std::size_t n, links;
    Rows uses;           // links of each flow
    const double* part;  // of its rate, of each use
    const double* bytes;
    const double* many;
    Rows next;  // flows that wait for each
    const double* delay;
    const double* rate;  // of links, bytes per second
};

// What flows use, and rates of links, from some second on.
struct Change {
    double since;
    Rows uses;
    const double* part;
    const double* rate;
};

class MaxMin {
  public:
    // tolerance: flows that end within so much of a flow's duration after it do not see each
    // other go; 0: exact. changes: one after the other.
    MaxMin(const FlowSet& set, double tolerance, Interrupt& interrupt,
           std::vector<Change> changes = {});
    // Seconds at which each starts and ends. How many times rates were found.
    std::size_t run(double* begin, double* end);
    // Fair rates of all flows at once: no flow can have more without a slower one having less.
    void rates(double* rate);

  private:
    using Waiting = std::pair<double, std::int64_t>;  // seconds or a share, and a flow or a link
    using Queue = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;
    struct Link {
        double left, weight;  // bytes per second, and what the flows that share them count for
    };
    struct alignas(64) Flow {  // all that is looked at when it is decided, in one cache line
        double rate;           // bytes per second
        std::uint32_t first, uses;
        std::uint32_t link[12];  // if there are no more
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
    std::size_t changed_ = 0;  // how many of them are past
    double tolerance_;
    Interrupt& interrupt_;
    bool is_plain_;                      // every use counts for one
    bool is_stale_ = true;               // members and weights are of other flows
    std::size_t gone_ = 0;               // since they were found
    std::vector<Flow> flows_;
    std::vector<std::uint32_t> used_;    // links, flow by flow
    std::vector<double> weights_;        // of each use, unless it is plain
    std::vector<std::uint64_t> open_;    // flows that are not decided, a bit each
    std::vector<std::uint32_t> begin_, end_, members_;  // flows of link i: [begin_[i], end_[i])
    std::vector<std::size_t> touched_;   // links
    std::vector<Link> full_, now_;       // before anything is shared, and while it is
    std::vector<std::int64_t> active_, before_;  // before_: flows that each still waits for
    std::vector<double> left_, ready_;   // of flows: bytes, seconds
    Queue waiting_;
};

}  // namespace gradwire
