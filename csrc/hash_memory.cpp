#include "hash_memory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "hash.hpp"

namespace gradwire {
namespace {

using Seeds = std::vector<std::uint32_t>;

constexpr std::size_t block = 64;  // indices whose first slots are prefetched together

// One owner's slots, all 0 at first. An index is kept as index + 1.
class Table {
  public:
    Table(std::uint32_t* slot, Slots slots) : slot_(slot), slots_(slots), next_(slots.parallel) {}

    std::uint32_t* first_slot(std::uint32_t index, const Seeds& seeds) const {
        return slot_ + drawn(index, seeds[1], slots_.parallel);
    }

    // May be called from any number of threads at once. An index that finds no free slot is
    // counted, but not kept.
    void insert(std::uint32_t index, std::uint32_t* first, const Seeds& seeds) {
        if (take(first, index)) return;
        for (std::size_t t = 2; t < seeds.size(); ++t) {
            if (take(slot_ + drawn(index, seeds[t], slots_.parallel), index)) return;
        }
        const std::size_t at = next_.fetch_add(1, std::memory_order_relaxed);
        if (at < end()) slot_[at] = index + 1;
    }

    bool overflows() const { return next_ > end(); }
    std::size_t serial() const { return next_ - slots_.parallel; }

    // Writes the indices, at most `room`, which has to be all of them; returns how many.
    std::size_t extract(std::int32_t* out, std::size_t room) const {
        std::size_t found = 0;
        const std::size_t last = next_;
        for (std::size_t i = 0; i < last && found < room; ++i) {
            out[found] = static_cast<std::int32_t>(slot_[i] - 1);
            found += slot_[i] != 0;
        }
        return found;
    }

    // Becomes twice as large and empty, in memory of its own.
    void grow() {
        slots_ = {2 * slots_.parallel, 2 * std::max<std::size_t>(slots_.serial, 1)};
        own_ = std::make_unique<std::uint32_t[]>(end());
        slot_ = own_.get();
        next_ = slots_.parallel;
    }

  private:
    std::size_t end() const { return slots_.parallel + slots_.serial; }

    static bool take(std::uint32_t* slot, std::uint32_t index) {
        const std::atomic_ref<std::uint32_t> shared(*slot);
        std::uint32_t empty = 0;
        return shared.load(std::memory_order_relaxed) == 0 &&
               shared.compare_exchange_strong(empty, index + 1, std::memory_order_relaxed);
    }

    std::uint32_t* slot_;
    Slots slots_;
    std::atomic<std::size_t> next_;  // free serial slot
    std::unique_ptr<std::uint32_t[]> own_;
};

struct Owner {
    Owner(std::uint32_t* slot, Slots slots) : table(slot, slots) {}

    Table table;
    bool open = true;  // its indices are not all inserted yet
};

using Owners = std::vector<std::unique_ptr<Owner>>;

void insert_all(const std::int32_t* index, std::size_t count, const Seeds& seeds,
                const Owners& owners) {
    std::array<Owner*, block> owner;
    std::array<std::uint32_t*, block> first;
    for (std::size_t at = 0; at < count; at += block) {
        const std::size_t size = std::min(block, count - at);
        for (std::size_t j = 0; j < size; ++j) {
            const auto i = static_cast<std::uint32_t>(index[at + j]);
            owner[j] = owners[drawn(i, seeds[0], owners.size())].get();
            first[j] = owner[j]->table.first_slot(i, seeds);
            __builtin_prefetch(first[j], 1);
        }
        for (std::size_t j = 0; j < size; ++j) {
            const auto i = static_cast<std::uint32_t>(index[at + j]);
            if (owner[j]->open) owner[j]->table.insert(i, first[j], seeds);
        }
    }
}

void insert_from_threads(const std::int32_t* index, std::size_t count, const Seeds& seeds,
                         const Owners& owners, unsigned threads) {
    const auto begin = [&](std::size_t t) { return count * t / threads; };
    std::vector<std::jthread> others;  // joined at the end, also after an exception
    for (unsigned t = 1; t < threads; ++t) {
        others.emplace_back(insert_all, index + begin(t), begin(t + 1) - begin(t),
                            std::cref(seeds), std::cref(owners));
    }
    insert_all(index, begin(1), seeds, owners);
}

// Closes the open owners whose table sufficed and grows the other tables; returns how many grew and
// must be filled again.
std::size_t close_or_grow(const Owners& owners) {
    std::size_t grown = 0;
    for (const auto& owner : owners) {
        if (!owner->open) continue;
        owner->open = owner->table.overflows();
        if (!owner->open) continue;
        owner->table.grow();
        ++grown;
    }
    return grown;
}

}  // namespace

Hashed hash_partition(const std::int32_t* index, std::size_t count, std::size_t owners,
                      const Seeds& seeds, Slots slots, unsigned threads, std::int32_t* out) {
    const std::size_t each = slots.parallel + slots.serial;
    thread_local std::vector<std::uint32_t> memory;
    memory.assign(owners * each, 0);
    Owners all;
    for (std::size_t p = 0; p < owners; ++p) {
        all.push_back(std::make_unique<Owner>(memory.data() + p * each, slots));
    }
    Hashed result{std::vector<std::size_t>(owners), 0, 0};
    for (std::size_t grown = 1; grown > 0; result.growths += grown) {
        insert_from_threads(index, count, seeds, all, threads);
        grown = close_or_grow(all);
    }
    std::size_t written = 0;
    for (std::size_t p = 0; p < owners; ++p) {
        result.counts[p] = all[p]->table.extract(out + written, count - written);
        result.serial += all[p]->table.serial();
        written += result.counts[p];
    }
    return result;
}

}  // namespace gradwire
