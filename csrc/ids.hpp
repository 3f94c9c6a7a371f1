// Ids of rows, of several lists: which there are, and which lists have them.
// Nothing is checked here; gradwire/kernels/rows.py does.
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

// All ids, each once, ascending; the rows' addresses, id after id, of an id list after list, in a
// list in its order; where the rows of each id end among them. Returns how many ids. Each of the
// three holds as many as there are rows. Throws std::bad_alloc.
std::size_t order_rows(const std::vector<IdsOfRows>& lists, std::size_t row_bytes,
                       std::int64_t* each, const void** row, std::int64_t* end);

// All ids of lists of 32 bits, each once, ascending; of each whether it is single; and of all
// entries, list after list, which of the ids it is. Returns how many ids. Throws std::bad_alloc.
//
// Of n lists an id is alone if t of them have it and t·(n-1) is at most n. Of each list as many
// of those that are alone, its first, are single as every list but one has at least; of two or
// fewer lists all.
std::size_t single_ids(const std::vector<Ids>& lists, std::int32_t* each, std::uint8_t* single,
                       std::int64_t* at);

}  // namespace gradwire
