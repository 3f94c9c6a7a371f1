// Codes of sorted index lists: k indices, strictly ascending in 0 ... n - 1, in a number of bytes
// that depends on n and k alone. The layouts are in gradwire/kernels/index_codes.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparse.hpp"

namespace gradwire {

enum class IndexCode { int32, gap16, gap8, elias_fano, bitmap };

struct IndexList {  // n < 2^31, k <= n
    std::size_t n;
    std::size_t k;
};

// Writes every byte of the section. The indices must be valid (first_violation), and `bytes` must
// be the size of the code.
void encode_indices(IndexCode code, IndexList list, const std::int32_t* index,
                    std::uint8_t* section, std::size_t bytes);

// The section may hold anything. Returns k if it is the code of a list; the position of the first
// entry that is missing, out of range or not above the one before; or k + 1 if all k are good and
// something that must be zero is not. The content of index from that position on is undefined.
std::size_t decode_indices(const Sparse& sparse, IndexCode code, IndexList list,
                           const std::uint8_t* section, std::size_t bytes, std::int32_t* index);

}  // namespace gradwire
