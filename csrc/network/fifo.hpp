// A first-in, first-out queue in a ring buffer that keeps its memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace gradwire {

template <class Item>
class Fifo {
  public:
    bool empty() const { return size_ == 0; }
    const Item& front() const { return items_[head_]; }

    void push(const Item& item) {
        if (size_ == items_.size()) grow();
        items_[(head_ + size_++) & (items_.size() - 1)] = item;
    }

    Item pop() {
        const Item item = items_[head_];
        head_ = (head_ + 1) & (items_.size() - 1);
        --size_;
        return item;
    }

  private:
    void grow() {
        std::vector<Item> more(std::max<std::size_t>(4, 2 * items_.size()));
        for (std::size_t i = 0; i < size_; ++i)
            more[i] = items_[(head_ + i) & (items_.size() - 1)];
        items_ = std::move(more);
        head_ = 0;
    }

    std::vector<Item> items_;  // as many as a power of two
    std::size_t head_ = 0, size_ = 0;
};

}  // namespace gradwire
