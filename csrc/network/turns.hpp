// Items that wait at links, in lanes that take turns, one item each. When the next lane is chosen,
// the lane that was served last comes after all that got items since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gradwire {

template <class Item>
class Turns {
  public:
    Turns(std::size_t links, std::size_t lanes) : rings_(links), lanes_(lanes) {}

    bool waits(std::size_t link) const { return rings_[link].waiting > 0; }

    void push(std::size_t link, std::int32_t lane, const Item& item) {
        Ring& ring = rings_[link];
        Queue& own = lane_of(lane).items;
        const bool was_empty = own.first < 0;
        append(nodes_, own, kept(item));
        if (was_empty && lane != ring.served) append(lanes_, ring.lanes, lane);
        ++ring.waiting;
    }

    // Removes the next item and returns its lane and the item; something must be waiting.
    std::pair<std::int32_t, Item> pop(std::size_t link) {
        Ring& ring = rings_[link];
        if (ring.served >= 0 && lane_of(ring.served).items.first >= 0)
            append(lanes_, ring.lanes, ring.served);
        ring.served = remove_first(lanes_, ring.lanes);
        const std::int32_t node = remove_first(nodes_, lane_of(ring.served).items);
        nodes_[static_cast<std::size_t>(node)].next = spare_;
        spare_ = node;
        --ring.waiting;
        return {ring.served, nodes_[static_cast<std::size_t>(node)].item};
    }

  private:
    struct Queue {
        std::int32_t first = -1, last = -1;
    };
    struct Node {
        Item item;
        std::int32_t next;
    };
    struct Lane {
        Queue items;
        std::int32_t next = -1;
    };
    struct Ring {
        Queue lanes;  // lanes with items, except the one served last
        std::int32_t served = -1;
        std::int64_t waiting = 0;
    };

    Lane& lane_of(std::int32_t lane) { return lanes_[static_cast<std::size_t>(lane)]; }

    std::int32_t kept(const Item& item) {
        if (spare_ < 0) {
            nodes_.push_back({item, -1});
            return static_cast<std::int32_t>(nodes_.size()) - 1;
        }
        const std::int32_t node = spare_;
        spare_ = nodes_[static_cast<std::size_t>(node)].next;
        nodes_[static_cast<std::size_t>(node)].item = item;
        return node;
    }

    template <class Linked>
    static void append(std::vector<Linked>& all, Queue& queue, std::int32_t number) {
        all[static_cast<std::size_t>(number)].next = -1;
        if (queue.first < 0)
            queue.first = number;
        else
            all[static_cast<std::size_t>(queue.last)].next = number;
        queue.last = number;
    }

    template <class Linked>
    static std::int32_t remove_first(const std::vector<Linked>& all, Queue& queue) {
        const std::int32_t number = queue.first;
        queue.first = all[static_cast<std::size_t>(number)].next;
        return number;
    }

    std::vector<Ring> rings_;
    std::vector<Lane> lanes_;
    std::vector<Node> nodes_;
    std::int32_t spare_ = -1;  // the first free node
};

}  // namespace gradwire
