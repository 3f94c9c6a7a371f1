// Quantizers: a vector of fp32 as codes of a few bits, and back. Each instruction set has a table
// of these functions. They are written once, in codecs/ and formats/, and all give the same bits,
// except in NaNs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace gradwire {

// The Python face passes these numbers.
enum class Format : int {
    int8 = 0,
    e4m3 = 1,
    e5m2 = 2,
    levels2 = 3,  // QSGD with 2, 4 and 8 bits
    levels4 = 4,
    levels8 = 5,
    ternary = 6,
    powers = 7,  // powers of two: natural compression
    lloyd1 = 8,  // Lloyd-Max with one and two bits, for a normal distribution
    lloyd2 = 9,
    e2m1x = 13,  // OCP Microscaling; 10 to 12 are signs in the Python face
    e3m2x = 14,
    e2m3x = 15,
    e4m3x = 16,
};

// A random number depends on these three and on the element's index alone.
struct Noise {
    std::uint32_t first_key;
    std::uint32_t second_key;
    std::uint32_t shift;  // added to every number, modulo 2^32: decorrelates ranks
};

struct Codes {
    const std::uint8_t* codes;
    const float* scales;  // one per block, or one in all; null if the format has none
};

// One bit per element, set for the low value. values: none (-1 and 1), one (-v and v), or two (low
// and high).
struct Signs {
    const std::uint8_t* bits;
    const float* values;
    std::size_t count;

    float low() const { return count == 0 ? -1.0f : count == 1 ? -values[0] : values[0]; }
    float high() const { return count == 0 ? 1.0f : values[count - 1]; }
};

// Sums over blocks of 4096 elements in fp32, by 64 interleaved lanes, and over blocks in fp64.
struct SignSums {
    double below;  // the sum of the negative elements
    double above;
    std::size_t count_below;
    bool finite;
};

struct Codecs {
    // Writes codes and, unless the scale is given, scales. first: the index of x[0], for the noise.
    // stream: write codes around the cache. Returns whether all of x is finite; if not, the output
    // is unusable.
    bool (*encode)(Format format, Float type, const void* x, std::size_t first, std::size_t n,
                   Noise noise, float given_scale, std::uint8_t* codes, float* scales,
                   bool stream);
    // target = (sum in list order, in fp32, from zero) / divisor.
    void (*accumulate)(Format format, Float type, void* target, std::size_t n,
                       const Codes* payloads, std::size_t count, float divisor, bool stream);
    // The same for payloads of n plain numbers, all of one type.
    void (*accumulate_dense)(Float payloads_type, Float type, void* target, std::size_t n,
                             const void* const* payloads, std::size_t count, float divisor,
                             bool stream);
    // v += factor · decoded.
    void (*add)(Format format, float* v, std::size_t n, Codes payload, float factor);
    // Writes the bits of x < 0, and returns the sums of the elements below zero and of the others.
    // noise: decides the bits of zeros; if null, they are not set.
    SignSums (*pack_signs)(Float type, const void* x, std::size_t n, const Noise* noise,
                           std::uint8_t* bits);
    void (*accumulate_signs)(Float type, void* target, std::size_t n,
                             const Signs* payloads, std::size_t count, float divisor,
                             bool stream);
    void (*add_signs)(float* v, std::size_t n, Signs payload, float factor);
    // Returns the bits of the largest magnitude; infinity_bits or more if not all of x is finite.
    // squares: receives the sum of x² in the order of SignSums, unless null.
    std::uint32_t (*largest)(Float type, const void* x, std::size_t n, double* squares);
    // The random numbers themselves, for tests.
    void (*noise)(Noise noise, std::size_t first, std::size_t n, std::uint32_t* target);
};

// Cuts n elements into k runs of floor or ceil(n / k) each and draws one random place in each run.
void strata(const Codecs& codecs, Noise noise, std::size_t n, std::size_t k, std::int32_t* places);

// The size of a block in elements, its bytes without the scales, and the number of its scales.
struct Extent {
    std::size_t block;
    std::size_t block_bytes;
    std::size_t scales_per_block;
};
Extent extent_of(Format format);

// Advances u and v by a gradient, encodes v, and subtracts from v what the codes decode to, chunk
// by chunk in the cache. For formats with a scale per block, or none. Returns whether all was
// finite; an element that would become non-finite keeps its u and v.
bool update_codes(const Passes& passes, const Codecs& codecs, Format format, Float type,
                  const void* gradient, float* u, float* v, std::size_t n, Recurrence how,
                  Noise noise, std::uint8_t* codes, float* scales, const Watch* watch);

// The same with Adam's moments.
bool adam_codes(const Passes& passes, const Codecs& codecs, Format format, Float type,
                const void* gradient, float* m, float* q, float* v, std::size_t n,
                const AdamStep& how, Noise noise, std::uint8_t* codes, float* scales);

extern const Codecs plain_codecs;
#ifdef GRADWIRE_X86
extern const Codecs avx2_codecs;
extern const Codecs avx512_codecs;
#endif
#ifdef GRADWIRE_NEON
extern const Codecs neon_codecs;
#endif

}  // namespace gradwire
