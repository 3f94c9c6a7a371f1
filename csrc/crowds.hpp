// The code of a sorted list whose places come in crowds. The layout is in gradwire/kernels/crowds.py.
#pragma once

#include "indices.hpp"

namespace gradwire {

// A chunk of 16 places is crowded if the list has at least this many of them.
inline constexpr std::size_t crowd = 3;

// The number of crowded chunks, how many of them are full, and the number of places in no crowded
// chunk.
struct Crowds {
    std::size_t crowded, full, thin;
};

struct CodedList {
    IndexCode code;
    IndexList list;
    std::size_t bytes;
};

// The content of a section: which chunks are crowded, which of these are full, a mask of 16 bits
// for each crowded chunk that is not full, and the places in no crowded chunk.
struct CrowdsCode {
    CodedList crowded, full, thin;

    std::size_t masks() const { return 2 * (crowded.list.k - full.list.k); }
};

Crowds count_crowds(const std::int32_t* place, std::size_t k);

// Writes every byte of the section. The places must be valid (first_violation). Returns false, with
// nothing written, if the list does not have the counts in the code. Throws std::bad_alloc.
bool encode_crowds(const CrowdsCode& code, const std::int32_t* place, std::size_t k,
                   std::uint8_t* section);

enum class CrowdsDamage { none, crowded, full, thin, together };

// The section may hold anything. If it is good, the list is valid, though its counts may differ
// from the code's; otherwise the content of `place` is undefined. Throws std::bad_alloc.
CrowdsDamage decode_crowds(const Sparse& sparse, const CrowdsCode& code,
                           const std::uint8_t* section, std::size_t k, std::int32_t* place);

}  // namespace gradwire
