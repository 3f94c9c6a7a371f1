// The passes over memory, one table of functions per instruction set.
//
// A pass is the part of a kernel that touches every element; it is written once, in passes/,
// and compiled once for each (plain.cpp, avx2.cpp, avx512.cpp, neon.cpp). Everything else is
// compiled once, for the base machine. No multiply-add is ever fused (-ffp-contract=off), so all
// give the same bits, except in NaNs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// Element types; the Python face passes these numbers.
enum class Float : int { fp32 = 0, bf16 = 1, fp16 = 2 };

struct bf16 {
    std::uint16_t bits;
};
struct fp16 {
    std::uint16_t bits;
};

// How a gradient enters the residual.
enum class Mode : int { feedback = 0, momentum = 1, nesterov = 2 };

inline constexpr std::uint32_t magnitude_mask = 0x7fffffffu;
inline constexpr std::uint32_t infinity_bits = 0x7f800000u;
// 2^103, half of the step between the two largest floats: a smaller number, added to any finite
// float, leaves it finite.
inline constexpr std::uint32_t huge_bits = 0x73000000u;
inline constexpr std::size_t candidate_slack =
    128;  // a group may be appended before the count is checked

// Elements whose magnitude reaches the threshold, by ascending index. Non-negative floats order
// like their bits, so magnitudes are compared as integers. threshold is in [1, infinity_bits];
// infinity_bits collects nothing. When the arrays are full, make_room keeps the largest and raises
// the threshold to the least of them. All that was dropped, and all that the threshold rejects
// later, is smaller than those, or equal and of a higher index.
struct Candidates {
    std::uint32_t* bits;  // of the fp32 value, sign included
    std::uint32_t* index;
    std::size_t count;
    std::size_t capacity;  // the arrays hold candidate_slack more
    std::uint32_t threshold;
    std::size_t keep;  // how many make_room keeps; less than capacity
    void (*make_room)(Candidates& found);
};

struct Recurrence {
    Mode mode;
    float momentum;  // with Mode::feedback: the factor of the old residual
    float scale;
};

// One step of Adam in fp32, with d = scale · g, m and q the moments of d and of d²:
//   m = beta1·m + rest1·d,  q = beta2·q + rest2·d²,  v = v + factor · m / (root·√q + eps)
// root and factor hold the corrections of both biases.
struct AdamStep {
    float scale, beta1, rest1, beta2, rest2, root, eps, factor;
};

// Announces a block of elements, before u and v change in it, if any |scale·gradient| in it reaches
// the limit. Blocks are of watched_block elements, the last one of fewer, on every instruction set.
struct Watch {
    std::uint32_t limit;  // bits of the magnitude; 0: every block
    void* listener;
    void (*announce)(void* listener, std::size_t begin, std::size_t count);
};

inline constexpr std::size_t watched_block = 1024;

struct Passes {
    // Advances u and v by one gradient and collects candidates of the new v. An element that would
    // become non-finite keeps its u and v. Returns whether none did. watch: may be null.
    bool (*update)(Float type, const void* gradient, float* u, float* v, std::size_t n,
                   Recurrence how, Candidates& found, const Watch* watch);
    // The inverse of update, up to rounding. Elements that update left alone are left alone, except
    // those whose gradient is finite and huge, for which this cannot be known.
    void (*undo)(Float type, const void* gradient, float* u, float* v, std::size_t n,
                 Recurrence how);
    // Collects candidates of x. Returns whether all of x is finite.
    bool (*scan)(Float type, const void* x, std::size_t n, Candidates& found);
    // Returns how many magnitudes of x reach the bits of a threshold.
    std::size_t (*count)(Float type, const void* x, std::size_t n, std::uint32_t threshold);
    bool (*is_finite)(Float type, const void* x, std::size_t n);
    // target = source, rounded to nearest even. stream: write around the cache. Returns whether
    // all of target is finite.
    bool (*cast)(Float from, Float to, const void* source, void* target, std::size_t n,
                 bool stream);
    // sum += factor · source; sum is fp32.
    void (*add)(Float type, const void* source, float* sum, std::size_t n, float factor);
    // target = sum / divisor, rounded to the type. stream: write around the cache.
    void (*divide)(Float type, const float* sum, float divisor, void* target, std::size_t n,
                   bool stream);
    // Measure the machine, for the benchmark: u = m u + g, v = v + u without selecting; one read;
    // and a read that writes half as many bytes around the cache, as a cast does.
    void (*stream_update)(const float* gradient, float* u, float* v, std::size_t n,
                          float momentum);
    std::uint32_t (*stream_read)(const float* x, std::size_t n);
    void (*stream_halve)(const float* x, float* target, std::size_t n);
    // Advances moments and residual by one gradient. An element whose moments or residual would
    // become non-finite keeps all three. Returns whether none did.
    bool (*adam)(Float type, const void* gradient, float* m, float* q, float* v, std::size_t n,
                 const AdamStep& how);
    // The inverse of adam, up to rounding; elements that adam would leave alone are left alone.
    void (*undo_adam)(Float type, const void* gradient, float* m, float* q, float* v,
                      std::size_t n, const AdamStep& how);
};

extern const Passes plain_passes;
#ifdef GRADWIRE_X86
extern const Passes avx2_passes;
extern const Passes avx512_passes;
#endif
#ifdef GRADWIRE_NEON
extern const Passes neon_passes;
#endif

}  // namespace gradwire
