// QSGD: one of 2^bits - 1 levels at random, in blocks of 512.
namespace gradwire {
namespace {

// QSGD's levels: signed integers up to `top`, rounded up or down at random. The arithmetic is in
// fixed point: a sum of floats would be rounded, and sometimes to the next level even though x is
// exactly on a level.
template <int width>
struct Levels {
    static constexpr std::size_t block = 512;
    static constexpr int top = (1 << (width - 1)) - 1;
    static constexpr float steps = top;
    static constexpr float one = 0x1p24f;
    static constexpr bool stochastic = true;
    static constexpr bool one_scale = false;
    static constexpr bool mean = false;

    static inline std::int32_t level(float x, float inverse, std::uint32_t random) {
        const float y = float_of(bits_of(x) & magnitude_mask) * inverse;
        const auto fixed = static_cast<std::uint32_t>(static_cast<std::int32_t>(y));
        const auto chosen = static_cast<std::int32_t>((fixed + (random >> 8)) >> 24);
        const std::int32_t most = chosen < top ? chosen : top;
        return x < 0.0f ? -most : most;
    }
};

template <int width>
struct PackedLevels : Levels<width>, Packed<PackedLevels<width>, width> {
    using Levels<width>::top;
    using Packed<PackedLevels<width>, width>::block;

    static float meaning(int code) { return static_cast<float>(code - top); }

    static void encode(const float* x, std::size_t m, float inverse, const std::uint32_t* random,
                       std::uint8_t* out) {
        std::uint8_t code[block];
        for (std::size_t i = 0; i < m; ++i)
            code[i] = static_cast<std::uint8_t>(top + Levels<width>::level(x[i], inverse, random[i]));
        PackedLevels::pack(code, m, out);
    }
};

// Eight bits: the level itself.
struct ByteLevels : Levels<8>, SignedBytes {
    static void encode(const float* x, std::size_t m, float inverse, const std::uint32_t* random,
                       std::uint8_t* out) {
        for (std::size_t i = 0; i < m; ++i)
            out[i] = static_cast<std::uint8_t>(level(x[i], inverse, random[i]));
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        SignedBytes::add<block>(payloads, at, sink);
    }
};

}  // namespace
}  // namespace gradwire
