#include "sparse.hpp"

#include <algorithm>

#include "half.hpp"

namespace gradwire {
namespace {

constexpr std::size_t block = 4096;  // fp32 elements: 16 KiB of first-level cache

char* at(void* data, std::size_t i, Float type) {
    return static_cast<char*>(data) + i * width_of(type);
}

const char* at(const void* data, std::size_t i, Float type) {
    return static_cast<const char*>(data) + i * width_of(type);
}

// Calls add(begin, end, sum) for block after block and writes the quotient of each sum.
template <class Add>
void by_block(const Passes& passes, Float type, void* target, std::size_t n, float divisor,
              bool stream, Add add) {
    alignas(64) float sum[block];
    for (std::size_t begin = 0; begin < n; begin += block) {
        const std::size_t end = std::min(n, begin + block);
        add(begin, end, sum);
        passes.divide(type, sum, divisor, at(target, begin, type), end - begin, stream);
    }
}

}  // namespace

std::size_t first_violation(const std::int32_t* index, std::size_t count, std::size_t n) {
    constexpr std::size_t stride = 1024;
    const auto falls = [&](std::size_t j) { return index[j] <= index[j - 1]; };
    std::size_t j = count > 0 && index[0] >= 0 && static_cast<std::size_t>(index[0]) < n;
    if (j == 0) return 0;
    for (; j + stride <= count; j += stride) {  // no branches, so that compilers vectorise it
        int bad = static_cast<std::size_t>(index[j + stride - 1]) >= n;
        for (std::size_t i = j; i < j + stride; ++i) bad |= falls(i);
        if (bad != 0) break;
    }
    while (j < count && !falls(j) && static_cast<std::size_t>(index[j]) < n) ++j;
    return j;
}

void accumulate_dense(const Passes& passes, Float type, void* target, std::size_t n,
                      const std::vector<DensePayload>& payloads, float divisor, bool stream) {
    by_block(passes, type, target, n, divisor, stream,
             [&](std::size_t begin, std::size_t end, float* sum) {
                 std::fill_n(sum, block, 0.0f);
                 for (const DensePayload& payload : payloads) {
                     const char* const value = at(payload.value, begin, payload.type);
                     passes.add(payload.type, value, sum, end - begin, 1.0f);
                 }
             });
}

void add(float* v, const std::int32_t* index, const float* value, std::size_t k, float factor) {
    for (std::size_t j = 0; j < k; ++j) v[index[j]] += value[j] * factor;
}

void restore(float* u, float* v, const std::int32_t* index, const float* value,
             const float* velocities, std::size_t k) {
    for (std::size_t j = 0; j < k; ++j) v[index[j]] += value[j];
    if (u == nullptr) return;
    for (std::size_t j = 0; j < k; ++j) u[index[j]] = velocities[j];
}

}  // namespace gradwire
