#include "ids.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace gradwire {
namespace {

constexpr unsigned digit_bits = 11;  // so few that the counts stay in the first-level cache
constexpr std::size_t digits = std::size_t{1} << digit_bits;

struct Entry {
    std::uint64_t above;  // id minus the least id
    std::size_t place;    // position among all entries, list after list
};

// A buffer that grows, never shrinks, and is not initialised: fresh pages cost more than sorting.
struct Room {
    std::unique_ptr<Entry[]> entries;
    std::size_t size = 0;
    Entry* at_least(std::size_t wanted) {
        if (wanted > size) {
            entries.reset();
            size = 0;
            entries.reset(new Entry[wanted]);
            size = wanted;
        }
        return entries.get();
    }
};

std::int64_t id_at(const Ids& ids, std::size_t i) {
    return ids.is_wide ? static_cast<const std::int64_t*>(ids.id)[i]
                       : static_cast<const std::int32_t*>(ids.id)[i];
}

struct Sorted {
    const Entry* entry;
    std::size_t count;
    std::int64_t least;
    std::int64_t id(std::size_t i) const {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(least) + entry[i].above);
    }
};

// Sorts by one digit; entries with the same digit keep their order.
void sort_by_digit(const Entry* from, Entry* to, std::size_t count, unsigned shift) {
    std::size_t ends[digits] = {};
    const auto digit = [shift](const Entry& entry) { return entry.above >> shift & (digits - 1); };
    for (std::size_t i = 0; i < count; ++i) ++ends[digit(from[i])];
    std::size_t before = 0;
    for (std::size_t& end : ends) before += std::exchange(end, before);
    for (std::size_t i = 0; i < count; ++i) to[ends[digit(from[i])]++] = from[i];
}

// Returns all entries sorted by id; entries with the same id keep their order. The result is in
// this thread's memory and valid until the next call.
template <class List, class IdsOf>
Sorted sorted(const std::vector<List>& lists, IdsOf ids_of) {
    thread_local Room rooms[2];
    std::size_t count = 0;
    auto least = std::numeric_limits<std::int64_t>::max();
    auto most = std::numeric_limits<std::int64_t>::min();
    for (const List& list : lists) {
        const Ids& ids = ids_of(list);
        count += ids.count;
        for (std::size_t i = 0; i < ids.count; ++i) {
            least = std::min(least, id_at(ids, i));
            most = std::max(most, id_at(ids, i));
        }
    }
    Entry *from = rooms[0].at_least(count), *to = rooms[1].at_least(count);
    std::size_t place = 0;
    for (const List& list : lists) {
        const Ids& ids = ids_of(list);
        for (std::size_t i = 0; i < ids.count; ++i, ++place) {
            const auto id = static_cast<std::uint64_t>(id_at(ids, i));
            from[place] = {id - static_cast<std::uint64_t>(least), place};
        }
    }
    const auto above = [](const Entry& a, const Entry& b) { return a.above < b.above; };
    if (!std::is_sorted(from, from + count, above)) {
        const std::uint64_t span =
            static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
        for (unsigned shift = 0; shift < 64 && span >> shift != 0; shift += digit_bits) {
            sort_by_digit(from, to, count, shift);
            std::swap(from, to);
        }
    }
    return {from, count, least};
}

}  // namespace

std::size_t order_rows(const std::vector<IdsOfRows>& lists, std::size_t row_bytes,
                       std::int64_t* each, const void** row, std::int64_t* end) {
    const Sorted all = sorted(lists, [](const IdsOfRows& list) -> const Ids& { return list.ids; });
    thread_local std::vector<const char*> room;
    room.resize(all.count);
    const char** const rows = room.data();  // loops would ask for the thread's address of `room`
    std::size_t filled = 0;
    for (const IdsOfRows& list : lists) {
        for (std::size_t i = 0; i < list.ids.count; ++i) rows[filled++] = list.rows + i * row_bytes;
    }
    std::size_t found = 0;
    for (std::size_t i = 0; i < all.count; ++i) {
        found += i == 0 || all.entry[i].above != all.entry[i - 1].above;
        each[found - 1] = all.id(i);
        row[i] = rows[all.entry[i].place];
        end[found - 1] = static_cast<std::int64_t>(i + 1);
    }
    return found;
}

std::size_t single_ids(const std::vector<Ids>& lists, std::int32_t* each, std::uint8_t* single,
                       std::int64_t* at) {
    const Sorted all = sorted(lists, [](const Ids& list) -> const Ids& { return list; });
    const std::size_t n = lists.size();
    std::vector<std::size_t> times;
    for (std::size_t i = 0; i < all.count; ++i) {
        if (i == 0 || all.entry[i].above != all.entry[i - 1].above) {
            single[times.size()] = 0;
            each[times.size()] = static_cast<std::int32_t>(all.id(i));
            times.push_back(0);
        }
        ++times.back();
        at[all.entry[i].place] = static_cast<std::int64_t>(times.size() - 1);
    }
    const auto is_alone = [&](std::int64_t which) {
        return times[static_cast<std::size_t>(which)] * (n - 1) <= n;
    };
    std::vector<std::size_t> alone;
    const std::int64_t* own = at;
    for (const Ids& list : lists) {
        alone.push_back(static_cast<std::size_t>(std::count_if(own, own + list.count, is_alone)));
        own += list.count;
    }
    std::sort(alone.begin(), alone.end());
    const std::size_t most = n <= 2 ? alone.back() : alone[1];
    own = at;
    for (const Ids& list : lists) {
        std::size_t left = most;
        for (std::size_t i = 0; i < list.count && left > 0; ++i) {
            if (!is_alone(own[i])) continue;
            single[own[i]] = 1;
            --left;
        }
        own += list.count;
    }
    return times.size();
}

}  // namespace gradwire
