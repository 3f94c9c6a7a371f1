// Sums of payloads.
#pragma once

#include <vector>

#include "entries.hpp"
#include "kernels.hpp"

namespace gradwire {

struct DensePayload {
    const void* value;
    Float type;
};

// Returns the position of the first index that is negative, not below n, or not above the one
// before it; count if there is none.
std::size_t first_violation(const std::int32_t* index, std::size_t count, std::size_t n);

// target = (sum in list order, in fp32, from zero) / divisor, rounded to the type. stream: write
// around the cache.
void accumulate_dense(const Passes& passes, Float type, void* target, std::size_t n,
                      const std::vector<DensePayload>& payloads, float divisor, bool stream);

// v[index] += factor · value.
void add(float* v, const std::int32_t* index, const float* value, std::size_t k, float factor);

// Undoes a selection: v[index] += value, and u[index] = velocities; u may be null.
void restore(float* u, float* v, const std::int32_t* index, const float* value,
             const float* velocities, std::size_t k);

}  // namespace gradwire
