// Flows that share links fairly, event by event: gradwire/network/engines/flow.py has the face.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

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

class MaxMin {
  public:
    // tolerance: flows that end within so much of a flow's duration after it do not see each
    // other go; 0: exact.
    MaxMin(const FlowSet& set, double tolerance);
    // Seconds at which each starts and ends. How many times rates were found.
    std::size_t run(double* begin, double* end);
    // Fair rates of all flows at once: no flow can have more without a slower one having less.
    void rates(double* rate);

  private:
    using Waiting = std::pair<double, std::int64_t>;  // seconds or a share, and a flow or a link
    using Queue = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;

    void share();
    void freeze(std::int64_t link, double share);
    void done(std::size_t flow, double now, double* end);
    void admit(double now, double* begin, double* end);

    const FlowSet& set_;
    double tolerance_;
    std::vector<std::int64_t> active_, before_;  // before_: flows that each still waits for
    std::vector<double> rate_, left_, ready_;    // of flows: bytes per second, bytes, seconds
    std::vector<double> capacity_, weight_;      // of links
    std::vector<std::int64_t> members_, first_, open_, touched_;
    Queue waiting_;
};

}  // namespace gradwire
