// A switch that forwards Ethernet frames later than they came, and loses some of them.
//
//   port 0 ──► learn who is there ──► lost? ──► due at now + delay ± jitter ──► port 2
//
// Frames between two ports stay in order, whatever the jitter.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

namespace gradwire {

// Of each way from one port to another. loss: the probability that a frame is lost.
struct Distance {
    std::int64_t delay_ns, jitter_ns;
    double loss;
};

// lost: by `Distance::loss`; refused: by a port that is full or down.
struct Forwarded {
    std::int64_t frames = 0, lost = 0, refused = 0;
    double processor_seconds = 0.0;
};

class Forwarder {
  public:
    // sockets: one for each port, a packet socket that passes a virtio_net_hdr before each frame.
    // They stay the caller's.
    Forwarder(std::vector<int> sockets, const Distance& distance, std::uint64_t seed);

    // Forwards until `stop` can be read, or its other end is closed. Blocks.
    void run(int stop);

    // What `run` has done so far; may be called by another thread.
    Forwarded counts() const;

  private:
    struct Waiting {
        std::int64_t due;
        std::uint64_t order;
        std::size_t port;
        std::vector<char> bytes;

        bool operator<(const Waiting& other) const {  // the next one is the heap's largest
            return due != other.due ? due > other.due : order > other.order;
        }
    };

    void take(std::size_t port);
    void send_due(std::int64_t now);
    void forward(std::size_t from, std::size_t to, std::int64_t now, std::size_t size);

    std::vector<int> sockets_;
    Distance distance_;
    std::mt19937_64 random_;
    std::uniform_real_distribution<double> chance_{0.0, 1.0};
    std::uint64_t order_ = 0;
    std::vector<char> room_;
    std::vector<Waiting> waiting_;               // a heap
    std::vector<std::int64_t> last_due_;         // of each way, by from * ports + to
    std::unordered_map<std::uint64_t, std::size_t> port_of_;  // by address
    std::atomic<std::int64_t> frames_{0}, lost_{0}, refused_{0}, processor_ns_{0};
};

}  // namespace gradwire
