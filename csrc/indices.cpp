#include "indices.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace gradwire {
namespace {

static_assert(std::endian::native == std::endian::little, "the codes are little endian");

constexpr std::size_t word_bytes = 8;

// Reads eight bytes from `at` < size on; those past the end read as zero.
std::uint64_t load(const std::uint8_t* bytes, std::size_t at, std::size_t size) {
    std::uint64_t word = 0;
    if (size - at >= word_bytes) [[likely]] {
        std::memcpy(&word, bytes + at, word_bytes);
    } else {
        std::memcpy(&word, bytes + at, size - at);
    }
    return word;
}

// Writes eight bytes from `at` < size on; those past the end are dropped.
void store(std::uint8_t* bytes, std::size_t at, std::size_t size, std::uint64_t word) {
    if (size - at >= word_bytes) [[likely]] {
        std::memcpy(bytes + at, &word, word_bytes);
    } else {
        std::memcpy(bytes + at, &word, size - at);
    }
}

bool all_zero(const std::uint8_t* begin, const std::uint8_t* end) {
    return std::all_of(begin, end, [](std::uint8_t byte) { return byte == 0; });
}

// Writes a bitmap with ones at place(0) < place(1) < ... < place(k - 1) < 8 * size, for a third to
// a half of the bits. The current word is stored again with every one, because a branch at its end
// would be unpredictable.
template <class Place>
void write_half_of_ones(std::uint8_t* bits, std::size_t size, std::size_t k, Place place) {
    std::fill_n(bits, size, std::uint8_t{0});
    std::uint64_t word = 0;
    std::size_t before = 0;
    for (std::size_t j = 0; j < k; ++j) {
        const std::size_t one = place(j);
        const std::size_t at = one / 64;
        word &= std::uint64_t{0} - (at == before);
        word |= std::uint64_t{1} << (one % 64);
        store(bits, word_bytes * at, size, word);
        before = at;
    }
}

// The same for any number of ones; stores each word once.
template <class Place>
void write_ones(std::uint8_t* bits, std::size_t size, std::size_t k, Place place) {
    std::uint64_t word = 0;
    std::size_t at = 0;
    for (std::size_t j = 0; j < k; ++j) {
        const std::size_t one = place(j);
        for (; one / 64 > at / word_bytes; at += word_bytes) {
            store(bits, at, size, word);
            word = 0;
        }
        word |= std::uint64_t{1} << (one % 64);
    }
    for (; at < size; at += word_bytes) {
        store(bits, at, size, word);
        word = 0;
    }
}

// Calls take(place) for every one from word `first` on, ascending, as long as it returns true;
// returns whether it always did.
template <class Take>
bool read_ones(const std::uint8_t* bits, std::size_t size, std::size_t first, Take take) {
    for (std::size_t at = word_bytes * first; at < size; at += word_bytes) {
        for (std::uint64_t word = load(bits, at, size); word != 0; word &= word - 1) {
            if (!take(8 * at + static_cast<std::size_t>(std::countr_zero(word)))) return false;
        }
    }
    return true;
}

void encode_bitmap(IndexList list, const std::int32_t* index, std::uint8_t* section,
                   std::size_t bytes) {
    write_ones(section, bytes, list.k,
               [&](std::size_t j) { return static_cast<std::size_t>(index[j]); });
}

std::size_t decode_bitmap(const Sparse& sparse, IndexList list, const std::uint8_t* section,
                          std::size_t bytes, std::int32_t* index) {
    const Progress bulk = sparse.ones(section, list.n / 64, list.k, index);
    std::size_t found = bulk.found;
    const bool whole = read_ones(section, bytes, bulk.words, [&](std::size_t place) {
        if (found == list.k || place >= list.n) return false;
        index[found++] = static_cast<std::int32_t>(place);
        return true;
    });
    return found + (!whole && found == list.k);
}

// The layout of an Elias-Fano code: low bits first, then the upper bits in unary.
struct Halves {
    explicit Halves(IndexList list)
        : width(static_cast<unsigned>(std::bit_width(list.n / list.k)) - 1),
          low_bits(list.k * width),
          low_bytes((low_bits + 7) / 8) {}

    unsigned width;  // low bits of each index: 0 ... 30
    std::size_t low_bits;
    std::size_t low_bytes;
};

// Eight numbers take `width` bytes, so groups of eight do not depend on the ones before. Narrow
// ones fill one word. Each store also overwrites what is after the low bits; the upper bits are
// written later.
std::size_t encode_narrow(unsigned width, std::size_t k, const std::int32_t* index,
                          std::uint8_t* section, std::size_t bytes) {
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    std::size_t j = 0;
    for (; j + 8 <= k; j += 8) {
        std::uint64_t word = 0;
        for (unsigned i = 0; i < 8; ++i)
            word |= (static_cast<std::uint64_t>(index[j + i]) & mask) << (i * width);
        store(section, j / 8 * width, bytes, word);
    }
    return j;
}

void encode_low(const Halves& halves, IndexList list, const std::int32_t* index,
                std::uint8_t* section, std::size_t bytes) {
    const std::uint64_t mask = (std::uint64_t{1} << halves.width) - 1;
    const std::size_t first =
        halves.width <= 8 ? encode_narrow(halves.width, list.k, index, section, bytes) : 0;
    std::uint64_t held = 0;
    unsigned filled = 0;
    for (std::size_t j = first, at = first / 8 * halves.width; j < list.k; ++j) {
        held |= (static_cast<std::uint64_t>(index[j]) & mask) << filled;
        store(section, at, bytes, held);
        filled += halves.width;
        at += filled / 8;
        held >>= filled & ~7u;
        filled &= 7;
    }
}

void encode_elias_fano(IndexList list, const std::int32_t* index, std::uint8_t* section,
                       std::size_t bytes) {
    if (list.k == 0) return;
    const Halves halves(list);
    if (halves.width > 0) encode_low(halves, list, index, section, bytes);
    const auto place = [&](std::size_t j) {
        return (static_cast<std::size_t>(index[j]) >> halves.width) + j;
    };
    write_half_of_ones(section + halves.low_bytes, bytes - halves.low_bytes, list.k, place);
}

// Reads the rest after the bulk entry by entry; all of it, if the bulk was not good.
std::size_t decode_elias_fano(const Sparse& sparse, IndexList list, const std::uint8_t* section,
                              std::size_t bytes, std::int32_t* index) {
    if (list.k == 0) return 0;
    const Halves halves(list);
    const std::uint64_t mask = (std::uint64_t{1} << halves.width) - 1;
    const std::uint8_t* const upper = section + halves.low_bytes;
    const std::size_t upper_bytes = bytes - halves.low_bytes;
    const Progress bulk = sparse.elias_fano(
        {list.n, list.k, halves.width, section, bytes, upper, upper_bytes}, index);
    std::size_t found = bulk.found, bit = found * halves.width;
    std::size_t least = found == 0 ? 0 : static_cast<std::size_t>(index[found - 1]) + 1;
    const bool whole = read_ones(upper, upper_bytes, bulk.words, [&](std::size_t place) {
        if (found == list.k) return false;
        const std::uint64_t low = (load(section, bit / 8, bytes) >> (bit % 8)) & mask;
        const std::size_t now = ((place - found) << halves.width) | low;
        if (now < least || now >= list.n) return false;
        index[found++] = static_cast<std::int32_t>(now);
        least = now + 1;
        bit += halves.width;
        return true;
    });
    if (found < list.k) return found;
    const std::size_t spare = 8 * halves.low_bytes - halves.low_bits;
    const bool clean = spare == 0 || section[halves.low_bytes - 1] >> (8 - spare) == 0;
    return list.k + !(whole && clean);
}

// Gaps: a word below `escape`, the largest value, is the number of places left out before the next
// index; `escape` leaves out that many and is followed by another word.
template <class Word>
constexpr std::size_t escape = std::numeric_limits<Word>::max();

template <class Word>
void put(std::uint8_t*& to, std::size_t value) {
    const Word word = static_cast<Word>(value);
    std::memcpy(to, &word, sizeof word);
    to += sizeof word;
}

template <class Word>
void encode_gaps(IndexList list, const std::int32_t* index, std::uint8_t* section,
                 std::size_t bytes) {
    std::uint8_t* to = section;
    std::size_t next = 0;
    for (std::size_t j = 0; j < list.k; ++j) {
        std::size_t gap = static_cast<std::size_t>(index[j]) - next;
        for (; gap >= escape<Word>; gap -= escape<Word>) put<Word>(to, escape<Word>);
        put<Word>(to, gap);
        next = static_cast<std::size_t>(index[j]) + 1;
    }
    std::fill(to, section + bytes, std::uint8_t{0});
}

template <class Word>
std::size_t decode_gaps(IndexList list, const std::uint8_t* section, std::size_t bytes,
                        std::int32_t* index) {
    const std::uint8_t* const end = section + bytes;
    std::size_t found = 0, next = 0;
    while (found < list.k && section != end) {
        Word gap;
        std::memcpy(&gap, section, sizeof gap);
        section += sizeof gap;
        next += gap;
        if (gap == escape<Word>) continue;
        if (next >= list.n) return found;
        index[found++] = static_cast<std::int32_t>(next++);
    }
    return found + (found == list.k && !all_zero(section, end));
}

std::size_t decode_int32(IndexList list, const std::uint8_t* section, std::size_t bytes,
                         std::int32_t* index) {
    if (bytes > 0) std::memcpy(index, section, bytes);
    return first_violation(index, list.k, list.n);
}

}  // namespace

void encode_indices(IndexCode code, IndexList list, const std::int32_t* index,
                    std::uint8_t* section, std::size_t bytes) {
    switch (code) {
        case IndexCode::gap16:
            return encode_gaps<std::uint16_t>(list, index, section, bytes);
        case IndexCode::gap8:
            return encode_gaps<std::uint8_t>(list, index, section, bytes);
        case IndexCode::elias_fano:
            return encode_elias_fano(list, index, section, bytes);
        case IndexCode::bitmap:
            return encode_bitmap(list, index, section, bytes);
        default:
            if (bytes > 0) std::memcpy(section, index, bytes);
    }
}

std::size_t decode_indices(const Sparse& sparse, IndexCode code, IndexList list,
                           const std::uint8_t* section, std::size_t bytes, std::int32_t* index) {
    switch (code) {
        case IndexCode::gap16:
            return decode_gaps<std::uint16_t>(list, section, bytes, index);
        case IndexCode::gap8:
            return decode_gaps<std::uint8_t>(list, section, bytes, index);
        case IndexCode::elias_fano:
            return decode_elias_fano(sparse, list, section, bytes, index);
        case IndexCode::bitmap:
            return decode_bitmap(sparse, list, section, bytes, index);
        default:
            return decode_int32(list, section, bytes, index);
    }
}

}  // namespace gradwire
