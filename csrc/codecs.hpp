// Quantizers: a vector of fp32 as codes of a few bits, and back. One table of functions per
// instruction set, written once, in codecs/ and formats/; all of them give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace gradwire {

// The numbers are those that the Python face passes.
enum class Format : int {
    int8 = 0,
    e4m3 = 1,
    e5m2 = 2,
    levels2 = 3,  // QSGD with 2, 4 and 8 bits
    levels4 = 4,
    levels8 = 5,
    ternary = 6,
    powers = 7,  // of two: natural compression
    lloyd1 = 8,  // one and two bits of what is normally distributed
    lloyd2 = 9,
    e2m1x = 13,  // OCP Microscaling; 10 to 12 are signs
    e3m2x = 14,
    e2m3x = 15,
    e4m3x = 16,
};

// Random numbers are a function of these and of the element's index, of nothing else.
struct Noise {
    std::uint32_t first_key;
    std::uint32_t second_key;
    std::uint32_t shift;  // added to every number, modulo 2^32: decorrelates ranks
};

struct Codes {
    const std::uint8_t* codes;
    const float* scales;  // one per block, or one in all; null where a format has none
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
    double below;  // of the negative elements
    double above;
    std::size_t count_below;
    bool finite;
};

struct Codecs {
    // Writes codes and, unless the scale is given, scales. first: the index of x[0] for the noise.
    // stream: write codes around the cache. Returns whether all of x is finite; if not, what was
    // written is worthless.
    bool (*encode)(Format format, Float type, const void* x, std::size_t first, std::size_t n,
                   Noise noise, float given_scale, std::uint8_t* codes, float* scales,
                   bool stream);
    // target = (sum in list order, in fp32, from zero) / divisor.
    void (*accumulate)(Format format, Float type, void* target, std::size_t n,
                       const Codes* payloads, std::size_t count, float divisor, bool stream);
    // The same of n numbers of one type each.
    void (*accumulate_dense)(Float payloads_type, Float type, void* target, std::size_t n,
                             const void* const* payloads, std::size_t count, float divisor,
                             bool stream);
    // v += factor · decoded.
    void (*add)(Format format, float* v, std::size_t n, Codes payload, float factor);
    // The bits of x < 0 and the sums of what is below zero and of what is not. noise: decides the
    // bits of zeros; null: they are not set.
    SignSums (*pack_signs)(Float type, const void* x, std::size_t n, const Noise* noise,
                           std::uint8_t* bits);
    void (*accumulate_signs)(Float type, void* target, std::size_t n,
                             const Signs* payloads, std::size_t count, float divisor,
                             bool stream);
    void (*add_signs)(float* v, std::size_t n, Signs payload, float factor);
    // Bits of the largest magnitude; infinity_bits or more if not all of x is finite. squares: the
    // sum of x² in the order of SignSums, unless null.
    std::uint32_t (*largest)(Float type, const void* x, std::size_t n, double* squares);
    // The random numbers themselves, for tests.
    void (*noise)(Noise noise, std::size_t first, std::size_t n, std::uint32_t* target);
};

// One place in each of k runs of n elements, of floor or ceil(n / k) each, at random.
void strata(const Codecs& codecs, Noise noise, std::size_t n, std::size_t k, std::int32_t* places);

// Bytes of n elements without the scales, and how many scales they have.
struct Extent {
    std::size_t block;
    std::size_t block_bytes;
    std::size_t scales_per_block;
};
Extent extent_of(Format format);

// u and v advanced by a gradient, v encoded, and what the codes say taken out of v, chunk by chunk
// in the cache. For formats with a scale per block, or none. Returns whether all was finite; an
// element that was not kept its u and v.
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

}  // namespace gradwire
