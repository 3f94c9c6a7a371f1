// Zen's hierarchical hashing: splits a list of indices among owners, using a table of slots. A
// reference, to compare with `split` in streams.hpp. Nothing is checked here;
// gradwire/kernels/hash_memory.py does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire {

// The sizes of one owner's table: slots that hashes choose, and slots that are taken one by one.
struct Slots {
    std::size_t parallel;
    std::size_t serial;
};

struct Hashed {
    std::vector<std::size_t> counts;  // by owner
    std::size_t serial;               // entries for which all tries found a taken slot
    std::size_t growths;              // how often an owner's table was too small, and was doubled
};

// Writes the indices owner after owner, in the order of slots. seeds: of the owners, then one for
// each try. With one thread the result depends on the arguments alone; with more, this holds for
// the content of an owner's part but not for its order. Throws std::bad_alloc, std::system_error.
Hashed hash_partition(const std::int32_t* index, std::size_t count, std::size_t owners,
                      const std::vector<std::uint32_t>& seeds, Slots slots, unsigned threads,
                      std::int32_t* out);

}  // namespace gradwire
