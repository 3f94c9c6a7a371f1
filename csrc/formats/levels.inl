// QSGD: one of 2^bits - 1 levels at random, in blocks of 512.
namespace gradwire {
namespace {

// QSGD's levels: signed integers up to `top`, rounded up or down at random, in fixed point:
// a sum of floats would be rounded, now and then to the level above one that is met exactly.
template <int width>
struct Levels {
    static constexpr std::size_t block = 512;
    static constexpr int top = (1 << (width - 1)) - 1;
    static constexpr float steps = top;
    static constexpr float one = 0x1p24f;
    static constexpr bool stochastic = true;
    static constexpr bool one_scale = false;

    static inline std::int32_t level(float x, float inverse, std::uint32_t random) {
        const float y = float_of(bits_of(x) & magnitude_mask) * inverse;
        const auto fixed = static_cast<std::uint32_t>(static_cast<std::int32_t>(y));
        const auto chosen = static_cast<std::int32_t>((fixed + (random >> 8)) >> 24);
        const std::int32_t most = chosen < top ? chosen : top;
        return x < 0.0f ? -most : most;
    }
};

// Part p of a block lies in the bits from p · width on of every byte, as level + top.
template <int width>
struct PackedLevels : Levels<width> {
    using Levels<width>::block;
    using Levels<width>::top;
    static constexpr std::size_t parts = 8 / width;
    static constexpr std::size_t bytes(std::size_t m) { return (m + parts - 1) / parts; }

    static void encode(const float* x, std::size_t m, float inverse, const std::uint32_t* random,
                       std::uint8_t* out) {
        std::uint8_t code[block];
        for (std::size_t i = 0; i < m; ++i)
            code[i] = static_cast<std::uint8_t>(top + Levels<width>::level(x[i], inverse, random[i]));
        const std::size_t h = bytes(m);
        for (std::size_t i = m; i < h * parts; ++i) code[i] = 0;
        for (std::size_t j = 0; j < h; ++j) {
            std::uint32_t byte = 0;
            for (std::size_t p = 0; p < parts; ++p)
                byte |= std::uint32_t{code[p * h + j]} << (p * width);
            out[j] = static_cast<std::uint8_t>(byte);
        }
    }

    static float value(Block in, std::size_t m, std::size_t i) {
        const std::size_t h = bytes(m);
        const int code = in.codes[i % h] >> (i / h * width) & ((1 << width) - 1);
        return static_cast<float>(code - top) * in.scale;
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        constexpr int U = 8 / parts;
        constexpr std::size_t h = block / parts;
        float meaning[16];
        for (int code = 0; code < 16; ++code)
            meaning[code] = static_cast<float>((code & ((1 << width) - 1)) - top);
        for (std::size_t j = 0; j < h; j += U * W) {
            Vector all[U][parts];
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u)
#pragma GCC unroll 8
                for (std::size_t p = 0; p < parts; ++p) all[u][p] = sink.open(p * h + j + u * W);
            for (std::size_t r = 0; r < payloads; ++r) {
                const Block in = at(r);
                const Table values = table(meaning, in.scale);
                fetch_ahead(in.codes + j);
#pragma GCC unroll 8
                for (int u = 0; u < U; ++u) {
                    const Small codes = small(in.codes + j + u * W);
#pragma GCC unroll 8
                    for (std::size_t p = 0; p < parts; ++p)
                        all[u][p] = gradwire::add(
                            all[u][p], lookup(values, shifted(codes, static_cast<int>(p) * width)));
                }
            }
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u)
#pragma GCC unroll 8
                for (std::size_t p = 0; p < parts; ++p) sink.close(p * h + j + u * W, all[u][p]);
        }
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
