// Matrices with few nonzero rows, and stripes: each owner has some columns of all rows. Nothing is
// checked here; gradwire/kernels/rows.py does. Rows are bytes where nothing is computed.
#pragma once

#include <vector>

#include "kernels.hpp"

namespace gradwire {

struct Rows {
    const std::int32_t* id;  // ascending
    std::size_t count;
    std::size_t row_bytes;
};

// Writes the rows that have a bit set, ascending; returns how many. id has room for all rows.
std::size_t nonzero_rows(const void* x, std::size_t rows, std::size_t row_bytes, std::int32_t* id);

// Copies columns bounds[j] ... bounds[j + 1] - 1, in bytes, of the rows: one owner after the other,
// row by row for each; and back.
void gather_stripes(const void* x, Rows rows, const std::vector<std::size_t>& bounds, void* out);
void scatter_stripes(void* x, Rows rows, const std::vector<std::size_t>& bounds,
                     const void* stripes);

}  // namespace gradwire
