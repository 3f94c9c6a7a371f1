// The quantizers, written over a Vector. Included after passes.inl, with GRADWIRE_CODECS set to
// the name of their table.
//
// A format works on one block in the first-level cache, in stages: each stage is a plain loop over
// fp32 or integers, which compilers vectorise for the instruction set at hand. Nothing depends on
// the width of a vector, so all versions give the same bits.

// clang-format off: in this order
#include "formats/common.inl"
#include "formats/signed_bytes.inl"
#include "formats/float8.inl"
#include "formats/packed.inl"
#include "formats/levels.inl"
#include "formats/lloyd.inl"
#include "formats/ternary.inl"
#include "formats/powers.inl"
#include "formats/microscaling.inl"
// clang-format on

namespace gradwire {
namespace {

// Returns a block as fp32: x itself, or widened into `held`.
inline const float* as_fp32(const float* x, std::size_t, float*) { return x; }
template <class T>
inline const float* as_fp32(const T* x, std::size_t m, float* held) {
    write(x, held, m, false,
          [&](std::size_t i, std::size_t count) { return load_some(x + i, count); });
    return held;
}

void noise_block(Noise noise, std::size_t first, std::size_t n, std::uint32_t* target) {
    const auto begin = static_cast<std::uint32_t>(first);
    for (std::size_t i = 0; i < n; ++i)
        target[i] = random_bits(begin + static_cast<std::uint32_t>(i), noise);
}

}  // namespace
}  // namespace gradwire

// clang-format off: in this order
#include "codecs/sums.inl"
#include "codecs/codes.inl"
#include "codecs/signs.inl"
// clang-format on

namespace gradwire {

extern const Codecs GRADWIRE_CODECS = {encode,           accumulate, accumulate_dense, add_codes, pack_signs,
                                       accumulate_signs, add_signs,  largest,   noise_block};

}  // namespace gradwire
