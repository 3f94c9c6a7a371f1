// Ids of rows in several lists: which ids there are, and which lists have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire {

struct Ids {
    const void* id;
    std::size_t count;
    bool is_wide;  // 64 bits, else 32
};

// Lists of rows of equal length, one for each id.
struct IdsOfRows {
    Ids ids;
    const char* rows;
};

// Writes all ids, each once, ascending; the rows' addresses, grouped by id, and within an id in the
// order of lists and then of the list; and where the rows of each id end among them. Returns the
// number of ids. Each of the three outputs has room for as many as there are rows. Throws
// std::bad_alloc.
std::size_t order_rows(const std::vector<IdsOfRows>& lists, std::size_t row_bytes,
                       std::int64_t* each, const void** row, std::int64_t* end);

// Takes lists of 32-bit ids. Writes all ids, each once, ascending; for each id whether it is
// single; and for all entries, list after list, the position of their id among the ids. Returns the
// number of ids. Throws std::bad_alloc.
//
// With n lists, an id is alone if t of them have it and t·(n-1) is at most n. Let m be the second
// smallest number of alone ids that a list has, or with two lists or fewer the largest: then the
// first m alone ids of each list are single.
std::size_t single_ids(const std::vector<Ids>& lists, std::int32_t* each, std::uint8_t* single,
                       std::int64_t* at);

}  // namespace gradwire
