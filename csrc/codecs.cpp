#include "codecs.hpp"

#include <algorithm>

#include "half.hpp"

namespace gradwire {
namespace {

// Two blocks of most formats, whose residual and gradient stay in the first-level cache.
constexpr std::size_t chunk = watched_block;

// Watches a part of a vector and announces its blocks to the listener of the whole vector.
struct Part {
    const Watch* whole;
    std::size_t begin;

    static void announce(void* self, std::size_t begin, std::size_t count) {
        const Part& part = *static_cast<const Part*>(self);
        part.whole->announce(part.whole->listener, part.begin + begin, count);
    }
};

// Encodes a chunk of v and subtracts from v what the codes decode to. Returns whether all of v is
// finite; if not, v stays as it is, and the codes are unusable.
bool take_out(const Codecs& codecs, Format format, float* v, std::size_t begin, std::size_t count,
              Noise noise, std::uint8_t* codes, float* scales) {
    const Extent extent = extent_of(format);
    const std::size_t block = begin / extent.block;
    std::uint8_t* const out = codes + block * extent.block_bytes;
    float* const scale = scales + block * extent.scales_per_block;
    if (!codecs.encode(format, Float::fp32, v + begin, begin, count, noise, 0.0f, out, scale, false))
        return false;
    codecs.add(format, v + begin, count, {out, scale}, -1.0f);
    return true;
}

}  // namespace

Extent extent_of(Format format) {
    switch (format) {
        case Format::levels2: return {512, 128, 1};
        case Format::levels4: return {512, 256, 1};
        case Format::levels8: return {512, 512, 1};
        case Format::ternary: return {1280, 256, 0};
        case Format::powers: return {512, 576, 0};
        case Format::lloyd1: return {512, 64, 1};
        case Format::lloyd2: return {512, 128, 1};
        case Format::e2m1x: return {256, 136, 0};
        case Format::e3m2x:
        case Format::e2m3x: return {256, 200, 0};
        case Format::e4m3x: return {256, 264, 0};
        default: return {256, 256, 1};
    }
}

void strata(const Codecs& codecs, Noise noise, std::size_t n, std::size_t k,
            std::int32_t* places) {
    if (k == 0) return;
    auto* const random = reinterpret_cast<std::uint32_t*>(places);
    codecs.noise(noise, 0, k, random);
    std::size_t begin = 0;
    std::size_t rest = 0;  // begin · k = i · n - rest, so that run i begins at floor(i n / k)
    for (std::size_t i = 0; i < k; ++i) {
        const bool longer = rest + n % k >= k;
        const std::uint64_t size = n / k + (longer ? 1 : 0);
        rest = rest + n % k - (longer ? k : 0);
        places[i] = static_cast<std::int32_t>(begin + (random[i] * size >> 32));
        begin += size;
    }
}

bool update_codes(const Passes& passes, const Codecs& codecs, Format format, Float type,
                  const void* gradient, float* u, float* v, std::size_t n, Recurrence how,
                  Noise noise, std::uint8_t* codes, float* scales, const Watch* watch) {
    const auto* g = static_cast<const char*>(gradient);
    // No candidate reaches infinity, but if an element is not finite, a vector with no candidates
    // is still stored, which needs this space.
    std::uint32_t unused[2 * candidate_slack];
    bool finite = true;
    for (std::size_t begin = 0; begin < n; begin += chunk) {
        const std::size_t count = std::min(chunk, n - begin);
        Candidates none{unused, unused + candidate_slack, 0, 0, infinity_bits, 0, nullptr};
        Part part{watch, begin};
        const Watch here{watch != nullptr ? watch->limit : 0, &part, &Part::announce};
        float* const velocity = u == nullptr ? nullptr : u + begin;
        finite &= passes.update(type, g + begin * width_of(type), velocity, v + begin, count, how,
                                none, watch != nullptr ? &here : nullptr);
        finite &= take_out(codecs, format, v, begin, count, noise, codes, scales);
    }
    return finite;
}

bool adam_codes(const Passes& passes, const Codecs& codecs, Format format, Float type,
                const void* gradient, float* m, float* q, float* v, std::size_t n,
                const AdamStep& how, Noise noise, std::uint8_t* codes, float* scales) {
    const auto* g = static_cast<const char*>(gradient);
    bool finite = true;
    for (std::size_t begin = 0; begin < n; begin += chunk) {
        const std::size_t count = std::min(chunk, n - begin);
        finite &= passes.adam(type, g + begin * width_of(type), m + begin, q + begin, v + begin,
                              count, how);
        finite &= take_out(codecs, format, v, begin, count, noise, codes, scales);
    }
    return finite;
}

}  // namespace gradwire
