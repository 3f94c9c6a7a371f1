// The code of a sorted list whose places come in crowds. The layout is in gradwire/kernels/crowds.py.
#pragma once

#include "indices.hpp"

namespace gradwire {

// A chunk is crowded if the list has so many of its 16 places or more.
inline constexpr std::size_t crowd = 3;

// How many chunks are crowded, how many of these are full, and how many places are in none of
// them.
struct Crowds {
    std::size_t crowded, full, thin;
};

struct CodedList {
    IndexCode code;
    IndexList list;
    std::size_t bytes;
};

// What a section holds: which chunks are crowded, which of these are full, a mask of 16 bits for
// each of the others, and the places in no crowded chunk.
struct CrowdsCode {
    CodedList crowded, full, thin;

    std::size_t masks() const { return 2 * (crowded.list.k - full.list.k); }
};

Crowds count_crowds(const std::int32_t* place, std::size_t k);

// Writes every byte of the section. The places must be valid (first_violation). Returns false,
// with nothing written, if the list has not the counts of the code. Throws std::bad_alloc.
bool encode_crowds(const CrowdsCode& code, const std::int32_t* place, std::size_t k,
                   std::uint8_t* section);

enum class CrowdsDamage { none, crowded, full, thin, together };

// The section may hold anything. A good list is valid, but its counts may be others than the
// code's; of a bad one, `place` means nothing. Throws std::bad_alloc.
CrowdsDamage decode_crowds(const Sparse& sparse, const CrowdsCode& code,
                           const std::uint8_t* section, std::size_t k, std::int32_t* place);

}  // namespace gradwire
