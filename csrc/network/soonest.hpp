// Queues ordered by when their first item is due: a heap with four children per node, in which a
// changed top sinks down. At equal times the queue with the smaller number comes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire {

class Soonest {
  public:
    struct Due {
        std::int64_t time;
        std::int64_t queue;
        bool operator<(const Due& other) const {
            return time < other.time || (time == other.time && queue < other.queue);
        }
    };
    bool empty() const { return heap_.empty(); }
    const Due& top() const { return heap_.front(); }
    void push(Due due) {
        std::size_t at = heap_.size();
        heap_.push_back(due);
        while (at > 0 && due < heap_[(at - 1) / 4]) {
            heap_[at] = heap_[(at - 1) / 4];
            at = (at - 1) / 4;
        }
        heap_[at] = due;
    }
    void pop() {
        const Due last = heap_.back();
        heap_.pop_back();
        if (!heap_.empty()) replace(last);
    }
    // Removes the top and adds this one.
    void replace(Due due) {
        const std::size_t n = heap_.size();
        std::size_t at = 0;
        for (;;) {
            const std::size_t first = 4 * at + 1;
            if (first >= n) break;
            std::size_t least = first;
            const std::size_t end = first + 4 < n ? first + 4 : n;
            for (std::size_t child = first + 1; child < end; ++child)
                if (heap_[child] < heap_[least]) least = child;
            if (!(heap_[least] < due)) break;
            heap_[at] = heap_[least];
            at = least;
        }
        heap_[at] = due;
    }

  private:
    std::vector<Due> heap_;
};

}  // namespace gradwire
