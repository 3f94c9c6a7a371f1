// Handles packets that do not arrive, and paths after routing has gone around failures.
#include <algorithm>

#include "packets.hpp"

namespace gradwire {

// Drops a packet; a timer notifies its sender.
void Packets::lose(const Packet& packet, std::int64_t now) {
    ++totals_.dropped;
    tell(timers, {now + transport_.timeout, packet.connection, packet.number, packet.path,
                  packet.turn, Kind::lost, false, 1});
}

// The header overtakes everything, as acknowledgements do, and the receiver requests at once the
// packet it announces (Handley et al. 2017). The packet is lost like others if its way is broken,
// if no queue is long enough for it, or if the headers that are queued take the link as long as it
// would: each header is answered by a packet at once, so the headers of many senders would leave no
// capacity for anything else.
void Packets::trim(const Packet& packet, std::int64_t now) {
    const Ends& ends = messages_[static_cast<std::size_t>(packet.connection)].ends;
    const auto link = [&](std::uint8_t hop) {
        return static_cast<std::size_t>(link_of(ends, packet.path, hop, packet.hops));
    };
    if (size_of(packet) > transport_.queue) return lose(packet, now);
    for (std::uint8_t hop = packet.hop; hop < packet.hops; ++hop)
        if (is_down(link(hop), now)) return lose(packet, now);
    const std::size_t next = link(packet.hop);
    const std::int64_t owed = ready(next, now) - std::max(now, free_[next]);
    if (static_cast<double>(owed) > static_cast<double>(size_of(packet)) * per_byte_[next])
        return lose(packet, now);
    for (std::uint8_t hop = packet.hop; hop < packet.hops; ++hop)
        owe(link(hop), transport_.header);
    ++totals_.trimmed;
    const std::int64_t hops = std::int64_t{2} * packet.hops - packet.hop;
    tell(trimmed + static_cast<std::size_t>(hops),
         {now + hops * transport_.latency, packet.connection, packet.number, packet.path,
          packet.turn, Kind::trimmed, true, 1});
    if (transport_.ack > 0) take_way_back(packet, now);
}

// No sender is notified: packets sent from now on take other paths, and packets under way stay on
// theirs.
void Packets::change(std::int64_t number) {
    routing_ = &all_.paths[static_cast<std::size_t>(number)];
    avoided_.clear();
    for (std::size_t i = 0; i < all_.n; ++i) {
        Sender& sender = senders_[i];
        sender.in_vain = 0;
        sender.good.clear();
        sender.path = static_cast<std::int32_t>(routing_->path[i]);
    }
}

}  // namespace gradwire
