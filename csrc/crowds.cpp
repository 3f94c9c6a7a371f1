#include "crowds.hpp"

#include <bit>
#include <cstring>

#include "ranks.hpp"
#include "streams.hpp"

namespace gradwire {
namespace {

constexpr std::size_t chunk_size = std::size_t{1} << chunk_shift;

// The parts of a list that has been taken apart or has yet to be put together.
struct Parts {
    std::int32_t* crowded;
    std::int32_t* full;  // positions in `crowded`
    std::int32_t* thin;
};

Parts room_for(const CrowdsCode& code) {
    thread_local Buffer crowded, full, thin;
    const auto room = [](Buffer& buffer, const CodedList& part) {
        constexpr std::size_t more = 1;  // take_apart writes two thin places at once
        return reinterpret_cast<std::int32_t*>(buffer.at_least(part.list.k + more));
    };
    return {room(crowded, code.crowded), room(full, code.full), room(thin, code.thin)};
}

void encode(const CodedList& part, const std::int32_t* list, std::uint8_t* section) {
    encode_indices(part.code, part.list, list, section, part.bytes);
}

bool decode(const Sparse& sparse, const CodedList& part, const std::uint8_t* section,
            std::int32_t* list) {
    return decode_indices(sparse, part.code, part.list, section, part.bytes, list) == part.list.k;
}

void take_apart(const std::int32_t* place, std::size_t k, const Parts& parts,
                std::uint8_t* masks) {
    const auto in = [&](std::size_t j, std::int32_t chunk) {
        return j < k && place[j] >> chunk_shift == chunk;
    };
    std::size_t crowded = 0, full = 0, thin = 0;
    for (std::size_t j = 0; j < k;) {
        const std::int32_t chunk = place[j] >> chunk_shift;
        if (!in(j + crowd - 1, chunk)) {  // one place, or two
            const bool two = in(j + 1, chunk);
            parts.thin[thin] = place[j];
            parts.thin[thin + 1] = place[j + two];
            thin += 1 + two;
            j += 1 + two;
            continue;
        }
        if (in(j + chunk_size - 1, chunk)) {
            parts.full[full++] = static_cast<std::int32_t>(crowded);
            j += chunk_size;
        } else {
            unsigned bits = 0;
            for (; in(j, chunk); ++j) bits |= 1u << (place[j] & 15);
            const auto mask = static_cast<std::uint16_t>(bits);
            std::memcpy(masks, &mask, sizeof mask);
            masks += sizeof mask;
        }
        parts.crowded[crowded++] = chunk;
    }
}

// Returns whether the parts form a list of k valid places. Each part must be valid; the masks may
// hold anything.
bool put_together(const CrowdsCode& code, const Parts& parts, const std::uint8_t* masks,
                  std::size_t k, std::int32_t* place) {
    const std::size_t n = code.thin.list.n;
    std::size_t found = 0, full = 0, thin = 0;
    for (std::size_t i = 0; i < code.crowded.list.k; ++i) {
        const std::size_t begin = static_cast<std::size_t>(parts.crowded[i]) * chunk_size;
        const auto first = static_cast<std::int32_t>(begin);
        while (thin < code.thin.list.k && parts.thin[thin] < first) {
            if (found == k) return false;
            place[found++] = parts.thin[thin++];
        }
        if (thin < code.thin.list.k && parts.thin[thin] >> chunk_shift == parts.crowded[i])
            return false;
        if (full < code.full.list.k && static_cast<std::size_t>(parts.full[full]) == i) {
            if (k - found < chunk_size || n - begin < chunk_size) return false;
            for (std::size_t b = 0; b < chunk_size; ++b)
                place[found + b] = first + static_cast<std::int32_t>(b);
            found += chunk_size;
            ++full;
            continue;
        }
        std::uint16_t mask;
        std::memcpy(&mask, masks, sizeof mask);
        masks += sizeof mask;
        if (n - begin < chunk_size && mask >> (n - begin) != 0) return false;
        for (unsigned bits = mask; bits != 0; bits &= bits - 1) {
            if (found == k) return false;
            place[found++] = first + std::countr_zero(bits);
        }
    }
    const std::size_t left = code.thin.list.k - thin;
    if (k - found != left) return false;
    if (left > 0) std::memcpy(place + found, parts.thin + thin, left * sizeof *place);
    return true;
}

}  // namespace

Crowds count_crowds(const std::int32_t* place, std::size_t k) {
    constexpr std::size_t last = chunk_size - 1;
    std::uint32_t crowded = 0, full = 0, thin = 0;
    const auto chunk = [place](std::size_t j) { return place[j] >> chunk_shift; };
    const auto count = [&](std::uint32_t begins, std::uint32_t two, std::uint32_t three,
                           std::uint32_t all) {
        crowded += begins & three;
        full += begins & all;
        thin += (begins & ~three) + (begins & two & ~three);
    };
    const auto at_an_end = [&](std::size_t j) {
        const auto same = [&](std::size_t i) { return i < k && chunk(i) == chunk(j); };
        count(j == 0 || chunk(j - 1) != chunk(j), same(j + 1), same(j + crowd - 1), same(j + last));
    };
    std::size_t j = 0;
    for (; j < k && j < 1; ++j) at_an_end(j);
    for (; j + last < k; ++j) {  // no branches, so that compilers vectorise it
        count(chunk(j - 1) != chunk(j), chunk(j) == chunk(j + 1), chunk(j) == chunk(j + crowd - 1),
              chunk(j) == chunk(j + last));
    }
    for (; j < k; ++j) at_an_end(j);
    return {crowded, full, thin};
}

bool encode_crowds(const CrowdsCode& code, const std::int32_t* place, std::size_t k,
                   std::uint8_t* section) {
    if (code.crowded.list.k == 0) {
        if (code.thin.list.k != k) return false;
        encode(code.thin, place, section);
        return true;
    }
    const Crowds found = count_crowds(place, k);
    if (found.crowded != code.crowded.list.k || found.full != code.full.list.k ||
        found.thin != code.thin.list.k)
        return false;
    const Parts parts = room_for(code);
    std::uint8_t* const full = section + code.crowded.bytes;
    std::uint8_t* const masks = full + code.full.bytes;
    take_apart(place, k, parts, masks);
    encode(code.crowded, parts.crowded, section);
    encode(code.full, parts.full, full);
    encode(code.thin, parts.thin, masks + code.masks());
    return true;
}

CrowdsDamage decode_crowds(const Sparse& sparse, const CrowdsCode& code,
                           const std::uint8_t* section, std::size_t k, std::int32_t* place) {
    if (code.crowded.list.k == 0) {
        const bool good = code.thin.list.k == k && decode(sparse, code.thin, section, place);
        return good ? CrowdsDamage::none : CrowdsDamage::thin;
    }
    const Parts parts = room_for(code);
    const std::uint8_t* const full = section + code.crowded.bytes;
    const std::uint8_t* const masks = full + code.full.bytes;
    if (!decode(sparse, code.crowded, section, parts.crowded)) return CrowdsDamage::crowded;
    if (!decode(sparse, code.full, full, parts.full)) return CrowdsDamage::full;
    if (!decode(sparse, code.thin, masks + code.masks(), parts.thin)) return CrowdsDamage::thin;
    const bool whole = put_together(code, parts, masks, k, place);
    return whole ? CrowdsDamage::none : CrowdsDamage::together;
}

}  // namespace gradwire
