// Signed bytes times a scale; INT8 takes the nearest one, in blocks of 256.
namespace gradwire {
namespace {

inline void store_some_signed(std::uint8_t* to, Vector v, std::size_t count) {
    std::uint8_t last[W];
    store_signed(last, v);
    __builtin_memcpy(to, last, count);
}

struct SignedBytes {
    static constexpr std::size_t bytes(std::size_t m) { return m; }

    static float value(Block in, std::size_t, std::size_t i) {
        return static_cast<float>(static_cast<std::int8_t>(in.codes[i])) * in.scale;
    }

    template <std::size_t block, class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        add_terms<4>(payloads, block, sink, [&](std::size_t r, std::size_t first) {
            const Block in = at(r);
            fetch_ahead(in.codes + first);
            return [codes = in.codes, scale = fill(in.scale)](std::size_t i) {
                return mul(from_signed(codes + i), scale);
            };
        });
    }
};

struct Int8 : SignedBytes {
    static constexpr std::size_t block = 256;
    static constexpr float steps = 127.0f;
    static constexpr float one = 1.0f;
    static constexpr bool stochastic = false;
    static constexpr bool one_scale = false;
    static constexpr bool mean = false;

    static void encode(const float* x, std::size_t m, float inverse, const std::uint32_t*,
                       std::uint8_t* out) {
        const Vector by = fill(inverse);
        std::size_t i = 0;
        for (; i + W <= m; i += W) store_signed(out + i, mul(load(x + i), by));
        if (i < m) store_some_signed(out + i, mul(load_some(x + i, m - i), by), m - i);
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        SignedBytes::add<block>(payloads, at, sink);
    }
};

}  // namespace
}  // namespace gradwire
