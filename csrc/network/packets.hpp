// Packets in queues. The face, gradwire/network/engines/packet.py, describes the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "../interrupt.hpp"
#include "fifo.hpp"
#include "paths.hpp"
#include "soonest.hpp"
#include "switches.hpp"
#include "turns.hpp"

namespace gradwire {

// Parameters of all connections. Times in picoseconds, sizes in bytes.
struct Transport {
    std::int64_t packet, header, window, latency, timeout, queue, mark;
    std::int64_t ack, acked;  // bytes of an acknowledgement, and packets for each one
    std::int64_t band;       // bytes: queues are compared in units of this size
    std::int64_t entropies;  // how many different draws recycled paths use
    std::int64_t exclude;    // how long a host avoids a path that timed out
    bool repath;             // a pinned connection that timed out takes another path
    bool slow_down;          // windows shrink when packets are marked
    bool trim;               // a packet at a full queue loses its payload, not its header
    bool selective;          // pinned connections send again only what was lost
    std::uint64_t seed;
};

// How hosts and, with the last two, switches choose paths.
enum class Choice : std::int64_t { pinned, random, rotating, recycled, adaptive, round_robin };

// The paths of all connections from some time on.
struct Paths {
    std::int64_t since;          // picoseconds
    const std::int64_t* path;    // of pinned connections; negative: within the leaf
    const std::int64_t* counts;  // usable paths of each connection
    const std::int64_t* pair;    // row of the table
    const std::int64_t* table;   // [pairs, most], or null: the first `counts` are usable
    std::int64_t most;
};

// Messages in one direction, ordered by job, step and start. Those of a step begin when all of
// their job's previous step have arrived.
struct Connections {
    std::size_t n;
    const std::int64_t* source;  // hosts
    const std::int64_t* target;
    const std::int64_t* bytes;
    const std::int64_t* choice;
    const std::int64_t* start;  // after the step begins
    const std::int64_t* step;   // from 0, without gaps, continued from job to job
    const std::int64_t* job;    // from 0, without gaps
    std::vector<Paths> paths;   // the first applies from the beginning, each until the next
};

// Hosts' links come after those of the tiers: all links up, by host and port, then all down.
struct Hosts {
    std::int64_t count, ports;
    const std::int64_t* leaf_of;
    const std::int64_t* plane_of;
    const std::int64_t* rates;  // of every link, bits per second
    const std::int64_t* fails;  // of every link, picoseconds; negative: never
};

// A run that would exceed a limit stops and reports it.
struct Limits {
    std::int64_t packets;  // sent, including those sent again
    std::int64_t latest;   // picoseconds; twice this must fit into 64 bits
};

enum class Stopped : std::int64_t { not_at_all, too_many, too_late };

struct Totals {
    std::int64_t events = 0, dropped = 0, marked = 0, trimmed = 0;
    Stopped stopped = Stopped::not_at_all;
};

class Packets {
  public:
    Packets(const Connections& all, const Tiers& tiers, const Hosts& hosts,
            const Transport& transport, const Limits& limits, Interrupt& interrupt);
    // Writes when the last byte of each has arrived (negative: never, or not before the run
    // stopped), and the longest wait at each link, in picoseconds.
    Totals run(std::int64_t* end, std::int64_t* longest);

  private:
    struct Packet {
        std::int64_t time;  // when it is at the far end of its link
        std::int32_t connection, number, path;
        std::int32_t turn;  // the sender's turn when it was sent
        std::uint8_t hop, hops;
        bool marked, asks;  // asks: for an acknowledgement at once
    };
    struct Next {  // a packet of a connection, at its host's link
        std::int32_t number, path, turn;
        std::uint8_t hops;
        bool asks;
    };
    enum class Kind : std::uint8_t { acknowledged, gap, lost, trimmed, start, change };
    struct Notice {
        std::int64_t time;
        std::int32_t connection, number, path, turn;
        Kind kind;
        bool marked;
        std::uint16_t count;  // packets that it acknowledges or reports
    };
    // Queues of notices, numbered after those of links: acknowledgements by the hops of their way
    // back, timers, changes of paths, trimmed packets by the hops that the header has left plus the
    // way back, and starts, job by job.
    enum : std::size_t { back2, back4, back6, timers, changes, trimmed, starts = trimmed + 12 };
    struct Ends {
        std::int32_t source, target, from, to;  // hosts, then their leaves
        Ends back() const { return {target, source, to, from}; }
    };
    struct Message {
        std::int64_t packets, last;  // last: bytes of the last packet
        Ends ends;
    };
    struct Sender {
        std::int64_t next = 0, acked = 0, under_way = 0, sent = 0;
        std::int64_t in_vain = 0;
        std::int64_t seen = 0, seen_marked = 0;
        double window = 0.0, congestion = 1.0;
        std::int32_t path = 0, turn = 0;  // turn: how often it went back
        std::vector<std::int32_t> again;  // lost packets to send again, if only these are
        std::deque<std::int32_t> good;    // paths that were not congested
    };
    struct Receiver {
        std::int64_t expected = 0;
        bool told = false;  // whether it has reported the gap
        std::uint16_t silent = 0;  // packets since its last answer
    };

    void go();
    void begin(std::int64_t step, std::int64_t now);
    void send(std::int32_t connection, std::int64_t now);
    void emit(std::int32_t connection, std::int64_t number, std::int64_t now, bool asks);
    void enqueue(std::int64_t link, Packet packet, std::int64_t now);
    void take_turn(std::int64_t link, const Packet& packet, std::int64_t now);
    void serve(std::int64_t link, std::int64_t now);
    void serve_one(std::int64_t link, std::int64_t starts_at);
    void transmit(std::int64_t link, Packet packet, std::int64_t starts_at);
    std::int64_t size_of(const Packet& packet) const;
    std::int64_t ready(std::size_t link, std::int64_t now) const;
    bool is_down(std::size_t link, std::int64_t now) const;
    void steer(Packet& packet, std::int64_t now);
    void lose(const Packet& packet, std::int64_t now);
    void trim(const Packet& packet, std::int64_t now);
    void change(std::int64_t number);
    void deliver(const Packet& packet, std::int64_t now);
    void answer(const Packet& packet, Kind kind, std::int64_t number, std::int64_t now);
    void owe(std::size_t link, std::int64_t bytes);
    void take_way_back(const Packet& packet, std::int64_t now);
    void heard(const Notice& notice);
    void back_heard(Sender& sender, const Notice& notice);
    void single_heard(Sender& sender, const Notice& notice);
    void suspect(Sender& sender, const Notice& notice);
    void adapt(Sender& sender, const Notice& notice);
    void ended(std::int32_t connection, std::int64_t now);
    void tell(std::size_t queue, const Notice& notice);
    std::int32_t next_path(std::int32_t connection, std::int64_t now);
    std::int32_t other_path(std::int32_t connection, std::int64_t now) const;
    std::int32_t unavoided(std::int32_t connection, std::int64_t number, std::int64_t now,
                           std::int32_t but) const;
    std::uint64_t way(std::int32_t connection, std::int32_t path) const;
    bool avoids(std::int32_t connection, std::int32_t path, std::int64_t now) const;
    std::int32_t usable(std::int32_t connection, std::int64_t number) const;
    std::int64_t link_of(const Ends& ends, std::int64_t path, std::uint8_t hop,
                         std::uint8_t hops) const;
    std::int64_t link_of(const Packet& packet) const {
        return link_of(messages_[static_cast<std::size_t>(packet.connection)].ends, packet.path,
                       packet.hop, packet.hops);
    }
    Choice choice(std::int32_t connection) const {
        return static_cast<Choice>(all_.choice[connection]);
    }
    bool is_pinned(std::int32_t connection) const { return choice(connection) == Choice::pinned; }
    bool goes_back(std::int32_t connection) const {  // resends from the first missing packet on
        return is_pinned(connection) && !transport_.selective;
    }
    // Whether a link went down while a packet was on it, or before.
    bool has_failed(std::size_t link, std::int64_t now) const {
        return hosts_.fails[link] >= 0 && now > hosts_.fails[link];
    }
    bool may_repath(const Notice& notice) const {
        return transport_.repath && is_pinned(notice.connection) &&
               senders_[static_cast<std::size_t>(notice.connection)].path >= 0 &&
               routing_->counts[notice.connection] > 1;
    }

    const Connections& all_;
    const Tiers& tiers_;
    const Hosts& hosts_;
    const Transport& transport_;
    const Limits& limits_;
    Interrupt& interrupt_;
    const Paths* routing_;  // the current one
    std::int64_t settled_;  // when routing changes for the last time
    bool fails_ = false, owes_;  // fails_: some link fails; owes_: some traffic has priority
    std::size_t links_;
    std::vector<Message> messages_;
    std::vector<Sender> senders_;
    std::vector<Receiver> receivers_;
    std::vector<Fifo<Packet>> wires_;
    std::vector<Fifo<Notice>> notices_;
    Turns<Next> turns_;  // at hosts' links up; a lane for each connection and port
    std::vector<std::int64_t> free_;  // when each link has sent what it has
    std::vector<std::int64_t> owed_;  // link time that acknowledgements still need
    std::vector<double> per_byte_;    // picoseconds
    Switches switches_;
    bool is_steered_ = false;            // whether switches choose for some connection
    std::vector<std::int32_t> paths_, ways_;  // a switch's options for a packet
    std::vector<std::int64_t> open_;  // how many connections of each step have not ended
    std::vector<std::size_t> first_;  // the first connection of each step
    std::unordered_map<std::uint64_t, std::int64_t> avoided_;  // until when, by way()
    Soonest due_;
    std::int64_t* end_ = nullptr;
    std::int64_t* longest_ = nullptr;
    Totals totals_;
    std::int64_t emitted_ = 0;
};

}  // namespace gradwire
