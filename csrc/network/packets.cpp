// An event is a packet at the far end of a link, or a notice at a sender. Packets leave a link in
// order, and notices of one kind all take equally long, so every queue is first in, first out, and
// the heap holds queues, not packets. At a host's own link packets wait for their connection's
// turn; turns are computed when their result is needed, so they are not events.
#include "packets.hpp"

#include <algorithm>
#include <cmath>

namespace gradwire {

namespace {

constexpr std::int32_t below_leaf = -1;  // minus the port; stands for a path within a leaf
constexpr std::int32_t no_path = -1;
constexpr std::int64_t never_busy = -1;
constexpr std::int64_t tries = 64;  // timeouts in a row after which a connection gives up
constexpr double bits_of_a_byte_in_ps = 8e12;
constexpr double gain = 1.0 / 16;  // of DCTCP's estimate (Alizadeh et al. 2010)
constexpr std::uint64_t way_back = 1ULL << 32;  // for other random numbers than on the way there

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int32_t narrow(std::int64_t i) { return static_cast<std::int32_t>(i); }

}  // namespace

Packets::Packets(const Connections& all, const Tiers& tiers, const Hosts& hosts,
                 const Transport& transport, const Limits& limits, Interrupt& interrupt)
    : all_(all), tiers_(tiers), hosts_(hosts), transport_(transport), limits_(limits),
      interrupt_(interrupt), routing_(all.paths.data()), settled_(all.paths.back().since),
      owes_(transport.ack > 0 || (transport.trim && transport.header > 0)),
      links_(at(tiers.links() + 2 * hosts.count * hosts.ports)), senders_(all.n),
      receivers_(all.n), wires_(links_),
      notices_(starts + (all.n ? at(all.job[all.n - 1]) + 1 : 0)),
      turns_(at(hosts.count * hosts.ports), all.n * at(hosts.ports)), free_(links_, never_busy),
      owed_(links_, 0), per_byte_(links_, 0.0),
      switches_(at(tiers.leaves + tiers.pods * tiers.uplinks), transport.seed) {
    for (std::size_t i = 0; i < links_; ++i) {
        fails_ |= hosts.fails[i] >= 0;
        if (hosts.rates[i] > 0)
            per_byte_[i] = bits_of_a_byte_in_ps / static_cast<double>(hosts.rates[i]);
    }
    for (std::size_t i = 0; i < all.n; ++i) {
        Sender& sender = senders_[i];
        const std::int64_t packets = (all.bytes[i] - 1) / transport.packet + 1;
        messages_.push_back(
            {packets,
             all.bytes[i] - (packets - 1) * transport.packet,
             {narrow(all.source[i]), narrow(all.target[i]),
              narrow(hosts.leaf_of[all.source[i]]), narrow(hosts.leaf_of[all.target[i]])}});
        is_steered_ |= all.choice[i] >= static_cast<std::int64_t>(Choice::adaptive);
        sender.window = static_cast<double>(transport.window);
        sender.path = static_cast<std::int32_t>(routing_->path[i]);
        if (at(all.step[i]) == open_.size()) open_.push_back(0), first_.push_back(i);
        ++open_.back();
    }
    first_.push_back(all.n);
}

void Packets::tell(std::size_t queue, const Notice& notice) {
    if (notices_[queue].empty())
        due_.push({notice.time, static_cast<std::int64_t>(links_ + queue)});
    notices_[queue].push(notice);
}

void Packets::begin(std::int64_t step, std::int64_t now) {
    for (std::size_t i = first_[at(step)]; i < first_[at(step) + 1]; ++i)
        tell(starts + at(all_.job[i]), {now + all_.start[i], static_cast<std::int32_t>(i), 0, 0, 0,
                                        Kind::start, false, 0});
}

std::int32_t Packets::usable(std::int32_t connection, std::int64_t number) const {
    const Paths& now = *routing_;
    if (!now.table) return static_cast<std::int32_t>(number);
    return static_cast<std::int32_t>(now.table[now.pair[connection] * now.most + number]);
}

std::int32_t Packets::next_path(std::int32_t connection, std::int64_t now) {
    Sender& sender = senders_[at(connection)];
    const std::int64_t count = routing_->counts[connection], sent = sender.sent;
    const Dice dice(transport_.seed + static_cast<std::uint64_t>(connection));
    std::int64_t number = sent;
    switch (choice(connection)) {
        case Choice::adaptive:
        case Choice::round_robin:  // chooses the port; switches choose the rest
            return usable(connection, pick(dice(static_cast<std::uint64_t>(sent)), count));
        case Choice::random:
            number = pick(dice(static_cast<std::uint64_t>(sent)), count);
            break;
        case Choice::rotating:
            number = (pick(dice(0), count) + sent) % count;
            break;
        case Choice::recycled:
            while (!sender.good.empty() && sent >= transport_.window) {
                const std::int32_t path = sender.good.front();
                sender.good.pop_front();
                if (!avoids(connection, path, now)) return path;
            }
            number = pick(dice(static_cast<std::uint64_t>(sent % transport_.entropies)), count);
            break;
        default:
            return sender.path;
    }
    return unavoided(connection, number, now, no_path);
}

// The key of a path from the connection's host to its target leaf.
std::uint64_t Packets::way(std::int32_t connection, std::int32_t path) const {
    const Ends& ends = messages_[at(connection)].ends;
    const auto host = static_cast<std::uint64_t>(ends.source);
    const auto leaf = static_cast<std::uint64_t>(ends.to);
    return (host << 24 | leaf) << 20 | static_cast<std::uint64_t>(path);
}

bool Packets::avoids(std::int32_t connection, std::int32_t path, std::int64_t now) const {
    if (avoided_.empty()) return false;
    const auto found = avoided_.find(way(connection, path));
    return found != avoided_.end() && now < found->second;
}

// Returns the usable path of this number, or the next one after it that is neither avoided nor
// `but`; if there is none, the path of this number.
std::int32_t Packets::unavoided(std::int32_t connection, std::int64_t number, std::int64_t now,
                                std::int32_t but) const {
    const std::int64_t count = routing_->counts[connection];
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t path = usable(connection, (number + i) % count);
        if (path != but && !avoids(connection, path, now)) return path;
    }
    return usable(connection, number);
}

// Returns a random usable path other than the current one.
std::int32_t Packets::other_path(std::int32_t connection, std::int64_t now) const {
    const Sender& sender = senders_[at(connection)];
    const std::int64_t count = routing_->counts[connection];
    const Dice dice(transport_.seed + static_cast<std::uint64_t>(connection));
    std::int64_t number = pick(dice(static_cast<std::uint64_t>(sender.sent)), count - 1);
    if (usable(connection, number) == sender.path) number = count - 1;
    return unavoided(connection, number, now, sender.path);
}

// Returns the link of a hop: up from the host, through the fabric, down to the host.
std::int64_t Packets::link_of(const Ends& ends, std::int64_t path, std::uint8_t hop,
                              std::uint8_t hops) const {
    const std::int64_t a = ends.from, b = ends.to;
    const bool is_first = hop == 0, is_last = hop + 1 == hops;
    if (is_first || is_last) {
        std::int64_t plane = path < 0 ? below_leaf - path : 0;
        if (path >= 0 && hosts_.ports > 1)
            plane = hosts_.plane_of[tiers_.crosses(a, b) ? path / tiers_.cores : path];
        const std::int64_t host = is_first ? ends.source : hosts_.count + ends.target;
        return tiers_.links() + host * hosts_.ports + plane;
    }
    const Hops way = tiers_.hops(a, b, path);
    // Tiers::hops lists them as up, down, up to the core, down from it.
    static constexpr std::size_t in_order[2][4] = {{0, 1, 0, 0}, {0, 2, 3, 1}};
    return way.link[in_order[way.count == 4][hop - 1]];
}

// Lets switches choose a packet's way: a leaf its uplink, among those of the same port of hosts,
// and the switch above it a core.
void Packets::steer(Packet& packet, std::int64_t now) {
    const std::int32_t one = packet.connection;
    const Choice chosen = choice(one);
    const bool is_far = packet.hops == 6, is_leaf = packet.hop == 1;
    if (chosen < Choice::adaptive || packet.hops == 2 || packet.hop > (is_far ? 2 : 1)) return;
    const Ends& ends = messages_[at(one)].ends;
    const std::int64_t cores = is_far ? tiers_.cores : 1, uplink = packet.path / cores;
    paths_.clear(), ways_.clear();
    for (std::int64_t i = 0; i < routing_->counts[one]; ++i) {
        const std::int32_t path = usable(one, i);
        const std::int64_t own = path / cores;
        const bool is_open = is_leaf ? hosts_.plane_of[own] == hosts_.plane_of[uplink]
                                     : own == uplink;
        const std::int32_t way = narrow(is_leaf ? own : path % cores);
        if (is_open && (ways_.empty() || ways_.back() != way))
            paths_.push_back(path), ways_.push_back(way);
    }
    if (paths_.empty()) return;  // routing dropped this way: the packet goes to a dead link
    const std::int64_t above = tiers_.leaves + tiers_.pod_of[ends.from] * tiers_.uplinks + uplink;
    const std::size_t which = at(is_leaf ? ends.from : above);
    const auto wait = [&](std::int32_t path) {
        const std::size_t link = at(link_of(ends, path, packet.hop, packet.hops));
        if (is_down(link, now)) return limits_.latest;
        return static_cast<std::int64_t>(
            static_cast<double>(ready(link, now) - now) /
            (static_cast<double>(transport_.band) * per_byte_[link]));
    };
    packet.path = paths_[chosen == Choice::adaptive
                             ? switches_.shortest(which, paths_, wait)
                             : switches_.in_turn(which, ways_,
                                                 at(is_leaf ? tiers_.uplinks : cores))];
}

void Packets::emit(std::int32_t connection, std::int64_t number, std::int64_t now, bool asks) {
    if (++emitted_ > limits_.packets) throw Stopped::too_many;
    interrupt_(50);
    Sender& sender = senders_[at(connection)];
    const std::int64_t a = messages_[at(connection)].ends.from;
    const std::int64_t b = messages_[at(connection)].ends.to;
    const std::uint8_t hops = a == b ? 2 : tiers_.crosses(a, b) ? 6 : 4;
    const std::int32_t path = a == b ? sender.path : next_path(connection, now);
    ++sender.sent;
    ++sender.under_way;
    const Packet packet{0, connection, static_cast<std::int32_t>(number), path,
                        sender.turn, 0, hops, false, asks};
    enqueue(link_of(packet), packet, now);
}

void Packets::send(std::int32_t connection, std::int64_t now) {
    Sender& sender = senders_[at(connection)];
    const auto window = static_cast<std::int64_t>(sender.window);
    const std::int64_t packets = messages_[at(connection)].packets;
    if (goes_back(connection)) {
        const std::int64_t end = std::min(packets, sender.acked + window);
        while (sender.next < end) {
            const std::int64_t number = sender.next++;
            emit(connection, number, now, sender.next == end);
        }
        return;
    }
    while (sender.under_way < window && (!sender.again.empty() || sender.next < packets)) {
        std::int64_t number = sender.next;
        if (sender.again.empty()) {
            ++sender.next;
        } else {
            number = sender.again.back();
            sender.again.pop_back();
        }
        const bool is_all = sender.again.empty() && sender.next == packets;
        emit(connection, number, now, is_all || sender.under_way + 1 == window);
    }
}

std::int64_t Packets::size_of(const Packet& packet) const {
    const Message& message = messages_[at(packet.connection)];
    return transport_.header +
           (packet.number + 1 < message.packets ? transport_.packet : message.last);
}

bool Packets::is_down(std::size_t link, std::int64_t now) const {
    return per_byte_[link] == 0.0 || (hosts_.fails[link] >= 0 && now >= hosts_.fails[link]);
}

// Returns when a link can begin with a packet that comes now: acknowledgements have used its idle
// time, and what is still owed to them delays this packet.
std::int64_t Packets::ready(std::size_t link, std::int64_t now) const {
    const std::int64_t begins = std::max(now, free_[link]);
    if (!owes_) return begins;
    const std::int64_t idled = begins - std::max<std::int64_t>(free_[link], 0);
    return begins + std::max<std::int64_t>(0, owed_[link] - idled);
}

void Packets::enqueue(std::int64_t link, Packet packet, std::int64_t now) {
    const std::size_t i = at(link);
    const std::int64_t starts_at = ready(i, now);
    const auto waits = static_cast<double>(starts_at - now);
    const bool is_full =
        packet.hop > 0 &&
        waits + static_cast<double>(size_of(packet)) * per_byte_[i] >
            static_cast<double>(transport_.queue) * per_byte_[i];
    if (is_full || is_down(i, now)) {
        transport_.trim ? trim(packet, now) : lose(packet, now);
        return;
    }
    if (packet.hop == 0) {
        take_turn(link, packet, now);
        return;
    }
    if (!packet.marked && waits > static_cast<double>(transport_.mark) * per_byte_[i]) {
        packet.marked = true;
        ++totals_.marked;
    }
    longest_[i] = std::max(longest_[i], starts_at - now);
    transmit(link, packet, starts_at);
}

// Queues a packet at its host's link up; these are the first of the hosts' links.
void Packets::take_turn(std::int64_t link, const Packet& packet, std::int64_t now) {
    serve(link, now);
    const std::int64_t own = link - tiers_.links();
    const std::int64_t lane = packet.connection * hosts_.ports + own % hosts_.ports;
    turns_.push(at(own), narrow(lane), {packet.number, packet.path, packet.turn, packet.hops,
                                       packet.asks});
    if (free_[at(link)] < now) serve_one(link, now);
}

// Serves all packets whose turn came before now. Whose turn it is now is open until all events of
// this time have happened.
void Packets::serve(std::int64_t link, std::int64_t now) {
    while (free_[at(link)] < now && turns_.waits(at(link - tiers_.links())))
        serve_one(link, free_[at(link)]);
}

void Packets::serve_one(std::int64_t link, std::int64_t starts_at) {
    const auto [lane, next] = turns_.pop(at(link - tiers_.links()));
    transmit(link, {0, narrow(lane / hosts_.ports), next.number, next.path, next.turn, 0,
                    next.hops, false, next.asks}, ready(at(link), starts_at));
}

void Packets::transmit(std::int64_t link, Packet packet, std::int64_t starts_at) {
    const std::size_t i = at(link);
    const double takes = static_cast<double>(size_of(packet)) * per_byte_[i];
    if (takes > static_cast<double>(limits_.latest)) throw Stopped::too_late;
    free_[i] = starts_at + std::llround(takes);
    if (free_[i] > limits_.latest) throw Stopped::too_late;
    if (owes_) owed_[i] = 0;
    packet.time = free_[i] + transport_.latency;
    if (wires_[i].empty()) due_.push({packet.time, link});
    wires_[i].push(packet);
}

void Packets::ended(std::int32_t connection, std::int64_t now) {
    end_[connection] = now;
    const std::int64_t step = all_.step[connection];
    if (--open_[at(step)] > 0 || at(step) + 1 == open_.size()) return;
    if (all_.job[first_[at(step) + 1]] == all_.job[connection]) begin(step + 1, now);
}

void Packets::deliver(const Packet& packet, std::int64_t now) {
    Receiver& receiver = receivers_[at(packet.connection)];
    const std::int64_t packets = messages_[at(packet.connection)].packets;
    const bool is_next = packet.number == receiver.expected, is_spread = !goes_back(packet.connection);
    if (!is_spread && packet.number > receiver.expected) {  // a gap: some were lost
        if (!receiver.told) answer(packet, Kind::gap, receiver.expected, now);
        receiver.told = true;
        return;
    }
    if (is_next || is_spread) {
        ++receiver.expected;
        receiver.told = false;
        if (receiver.expected == packets) ended(packet.connection, now);
    }
    const bool is_due = receiver.silent + 1 >= transport_.acked || packet.asks || packet.marked;
    if (is_due || !(is_next || is_spread))
        answer(packet, Kind::acknowledged, is_spread ? packet.number : receiver.expected, now);
    else
        ++receiver.silent;
}

void Packets::answer(const Packet& packet, Kind kind, std::int64_t number, std::int64_t now) {
    Receiver& receiver = receivers_[at(packet.connection)];
    const std::size_t back = packet.hops == 2 ? back2 : packet.hops == 4 ? back4 : back6;
    tell(back, {now + packet.hops * transport_.latency, packet.connection, narrow(number),
                packet.path, packet.turn, kind, packet.marked,
                static_cast<std::uint16_t>(receiver.silent + 1)});
    receiver.silent = 0;
    if (transport_.ack > 0) take_way_back(packet, now);
}

void Packets::owe(std::size_t link, std::int64_t bytes) {
    owed_[link] += std::llround(static_cast<double>(bytes) * per_byte_[link]);
    if (owed_[link] > limits_.latest) throw Stopped::too_late;
}

// Acknowledgements go first, so they never wait; they take link time from later packets. Their path
// is another hash: one for each connection and path of the packet.
void Packets::take_way_back(const Packet& packet, std::int64_t now) {
    const Ends ends = messages_[at(packet.connection)].ends.back();
    std::int64_t path = packet.path;
    if (path >= 0) {
        const Dice dice(transport_.seed + way_back + static_cast<std::uint64_t>(packet.connection));
        path = usable(packet.connection, pick(dice(static_cast<std::uint64_t>(path)),
                                              routing_->counts[packet.connection]));
    }
    for (std::uint8_t hop = 0; hop < packet.hops; ++hop) {
        const std::int64_t link = link_of(ends, path, hop, packet.hops);
        if (hop == 0) serve(link, now);
        owe(at(link), transport_.ack);
    }
}

void Packets::adapt(Sender& sender, const Notice& notice) {
    if (!transport_.slow_down) return;
    sender.seen_marked += notice.marked;
    sender.seen += notice.count;
    if (static_cast<double>(sender.seen) < sender.window) return;
    const double part = static_cast<double>(sender.seen_marked) / static_cast<double>(sender.seen);
    sender.congestion += gain * (part - sender.congestion);
    sender.window = part > 0.0 ? std::max(1.0, sender.window * (1 - sender.congestion / 2))
                               : std::min(sender.window + 1, static_cast<double>(transport_.window));
    sender.seen = sender.seen_marked = 0;
}

// Handles a timeout: suspects the path. A path that routing has changed since is not blamed.
void Packets::suspect(Sender& sender, const Notice& notice) {
    if (notice.path < 0 || choice(notice.connection) >= Choice::adaptive) return;
    if (transport_.exclude > 0)
        avoided_[way(notice.connection, notice.path)] = notice.time + transport_.exclude;
    if (may_repath(notice) && notice.path == sender.path)
        sender.path = other_path(notice.connection, notice.time);
}

void Packets::back_heard(Sender& sender, const Notice& notice) {
    const bool is_lost = notice.kind == Kind::lost;
    if (!is_lost) {
        if (notice.number > sender.acked) sender.in_vain = 0;
        sender.acked = std::max(sender.acked, static_cast<std::int64_t>(notice.number));
        sender.next = std::max(sender.next, sender.acked);
    }
    if (notice.kind == Kind::acknowledged) return adapt(sender, notice);
    if (notice.turn != sender.turn) return;  // the sender has gone back since
    if (is_lost && notice.number < sender.acked) return;
    sender.next = sender.acked;
    ++sender.turn;
    if (!is_lost) return;
    ++sender.in_vain;
    suspect(sender, notice);
}

void Packets::single_heard(Sender& sender, const Notice& notice) {
    sender.under_way -= notice.count;
    if (notice.kind != Kind::lost) adapt(sender, notice);
    if (notice.kind == Kind::acknowledged) {
        sender.in_vain = 0;
        if (choice(notice.connection) == Choice::recycled && !notice.marked)
            sender.good.push_back(notice.path);
        return;
    }
    sender.again.push_back(notice.number);
    if (notice.kind != Kind::lost) return;
    ++sender.in_vain;
    suspect(sender, notice);
}

void Packets::heard(const Notice& notice) {
    Sender& sender = senders_[at(notice.connection)];
    const bool is_back = goes_back(notice.connection);
    if (notice.kind == Kind::start) {
        if (may_repath(notice) && avoids(notice.connection, sender.path, notice.time))
            sender.path = other_path(notice.connection, notice.time);
    } else {
        is_back ? back_heard(sender, notice) : single_heard(sender, notice);
    }
    const std::int64_t most = is_back ? tries : tries * transport_.window;
    if (sender.in_vain < most || notice.time <= settled_) send(notice.connection, notice.time);
}

Totals Packets::run(std::int64_t* end, std::int64_t* longest) {
    end_ = end;
    longest_ = longest;
    std::fill_n(end, all_.n, -1);
    std::fill_n(longest, links_, 0);
    try {
        for (std::size_t i = 1; i < all_.paths.size(); ++i)
            tell(changes, {all_.paths[i].since, 0, narrow(static_cast<std::int64_t>(i)), 0, 0,
                           Kind::change, false, 0});
        for (std::size_t step = 0; step < open_.size(); ++step)
            if (step == 0 || all_.job[first_[step]] != all_.job[first_[step] - 1])
                begin(static_cast<std::int64_t>(step), 0);
        go();
    } catch (const Stopped why) {
        totals_.stopped = why;
    }
    return totals_;
}

void Packets::go() {
    const auto advance = [this](auto& queue, std::int64_t number) {
        const auto item = queue.pop();
        if (queue.empty())
            due_.pop();
        else
            due_.replace({queue.front().time, number});
        return item;
    };
    while (!due_.empty()) {
        const auto [now, number] = due_.top();
        if (now > limits_.latest) throw Stopped::too_late;
        interrupt_(100);
        ++totals_.events;
        if (at(number) >= links_) {
            const Notice notice = advance(notices_[at(number) - links_], number);
            notice.kind == Kind::change ? change(notice.number) : heard(notice);
            continue;
        }
        if (fails_ && has_failed(at(number), now)) {
            lose(advance(wires_[at(number)], number), now);
            continue;
        }
        if (wires_[at(number)].front().hop == 0) serve(number, now);
        Packet packet = advance(wires_[at(number)], number);
        if (++packet.hop == packet.hops)
            deliver(packet, now);
        else {
            if (is_steered_) steer(packet, now);
            enqueue(link_of(packet), packet, now);
        }
    }
}

}  // namespace gradwire
