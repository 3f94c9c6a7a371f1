// Zen's hierarchical hashing: a list of indices, split among owners by way of a table of slots. A
// reference, to compare with `split` in streams.hpp. Nothing is checked here;
// gradwire/kernels/hash_memory.py does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire {

// Slots of one owner's table: those that hashes choose, and those that are taken one by one.
struct Slots {
    std::size_t parallel;
    std::size_t serial;
};

struct Hashed {
    std::vector<std::size_t> counts;  // by owner
    std::size_t serial;               // entries for which all tries found a taken slot
    std::size_t growths;              // how often an owner's table was too small, and was doubled
};

// Owner after owner, in the order of slots. seeds: of the owners, then one for each try. With one
// thread the result depends on the arguments alone; with more, what is in an owner's part does,
// and its order does not. Throws std::bad_alloc, std::system_error.
Hashed hash_partition(const std::int32_t* index, std::size_t count, std::size_t owners,
                      const std::vector<std::uint32_t>& seeds, Slots slots, unsigned threads,
                      std::int32_t* out);

}  // namespace gradwire
