#include "rows.hpp"

#include <algorithm>
#include <cstring>

namespace gradwire {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t far = 16384;  // over a page: hardware prefetching stops at its end
constexpr std::size_t block = 512;
constexpr std::size_t rows_ahead = 8;
constexpr std::size_t long_piece = 512;

std::uint64_t word_at(const char* bytes) {
    std::uint64_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

// The bitwise or of all words of a multiple of eight bytes.
template <std::size_t bytes>
std::uint64_t united(const char* from) {
    std::uint64_t any = 0;
    for (std::size_t i = 0; i < bytes; i += 8) any |= word_at(from + i);
    return any;
}

// Whether any bit is set; for most nonzero rows the first line shows it.
bool any_set(const char* row, std::size_t bytes) {
    std::size_t i = 0;
    if (bytes >= line && united<line>(row) != 0) return true;
    for (; i + block <= bytes; i += block) {
        for (std::size_t j = 0; j < block; j += line) __builtin_prefetch(row + i + j + far);
        if (united<block>(row + i) != 0) return true;
    }
    std::uint64_t any = 0;
    for (; i + 8 <= bytes; i += 8) any |= word_at(row + i);
    std::uint64_t last = 0;
    if (i < bytes) std::memcpy(&last, row + i, bytes - i);  // without columns, row may be null
    return (any | last) != 0;
}

void prefetch(const char* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += line) __builtin_prefetch(from + i);
}

template <std::size_t size>
void copy_step(char* to, const char* from, std::size_t at) {
    std::memcpy(to + at, from + at, size);
}

// Copies a piece; pieces are short, so a call would take longer than the copy.
void copy_piece(char* to, const char* from, std::size_t size) {
    if (size >= long_piece) {
        std::memcpy(to, from, size);
    } else if (size >= 32) {
        for (std::size_t i = 0; i + 32 < size; i += 32) copy_step<32>(to, from, i);
        copy_step<32>(to, from, size - 32);
    } else if (size >= 16) {
        copy_step<16>(to, from, 0);
        copy_step<16>(to, from, size - 16);
    } else if (size >= 8) {
        copy_step<8>(to, from, 0);
        copy_step<8>(to, from, size - 8);
    } else if (size >= 4) {
        copy_step<4>(to, from, 0);
        copy_step<4>(to, from, size - 4);
    } else if (size >= 2) {
        copy_step<2>(to, from, 0);
    }
}

// Calls copy(address in the row, offset in the stripes, bytes) for each row and owner.
template <class Byte, class Copy>
void each_piece(Byte* x, Rows rows, const std::vector<std::size_t>& bounds, Copy copy) {
    const std::size_t first = bounds.front(), width = bounds.back() - first;
    for (std::size_t j = 0; j < rows.count; ++j) {
        const auto row_of = [&](std::size_t i) {
            return x + static_cast<std::size_t>(rows.id[i]) * rows.row_bytes;
        };
        if (j + rows_ahead < rows.count) prefetch(row_of(j + rows_ahead) + first, width);
        Byte* const row = row_of(j);
        for (std::size_t owner = 0; owner + 1 < bounds.size(); ++owner) {
            const std::size_t size = bounds[owner + 1] - bounds[owner];
            copy(row + bounds[owner], rows.count * (bounds[owner] - first) + j * size, size);
        }
    }
}

}  // namespace

std::size_t nonzero_rows(const void* x, std::size_t rows, std::size_t row_bytes,
                         std::int32_t* id) {
    const auto* row = static_cast<const char*>(x);
    std::size_t found = 0;
    for (std::size_t i = 0; i < rows; ++i, row += row_bytes) {
        id[found] = static_cast<std::int32_t>(i);
        found += any_set(row, row_bytes);
    }
    return found;
}

void gather_stripes(const void* x, Rows rows, const std::vector<std::size_t>& bounds, void* out) {
    auto* const to = static_cast<char*>(out);
    each_piece(static_cast<const char*>(x), rows, bounds,
               [to](const char* row, std::size_t at, std::size_t size) {
                   copy_piece(to + at, row, size);
               });
}

void scatter_stripes(void* x, Rows rows, const std::vector<std::size_t>& bounds,
                     const void* stripes) {
    const auto* const from = static_cast<const char*>(stripes);
    each_piece(static_cast<char*>(x), rows, bounds,
               [from](char* row, std::size_t at, std::size_t size) {
                   copy_piece(row, from + at, size);
               });
}

}  // namespace gradwire
