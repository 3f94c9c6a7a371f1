// Natural compression: a power of two at random, in blocks of 512.
namespace gradwire {
namespace {

// Block by block, exponents in a byte each, then signs in a bit each. The carry of mantissa +
// random into the exponent rounds up, so its probability is exactly the mantissa.
struct Powers {
    static constexpr std::size_t block = 512;
    static constexpr float steps = 0.0f;
    static constexpr float one = 1.0f;
    static constexpr bool stochastic = true;
    static constexpr bool one_scale = false;
    static constexpr bool mean = false;
    static constexpr std::size_t bytes(std::size_t m) { return m + bit_bytes(m); }

    static void encode(const float* x, std::size_t m, float, const std::uint32_t* random,
                       std::uint8_t* out) {
        for (std::size_t i = 0; i < m; ++i) {
            const std::uint32_t magnitude = bits_of(x[i]) & magnitude_mask;
            const std::uint32_t exponent = (magnitude + (random[i] & 0x7fffffu)) >> 23;
            out[i] = static_cast<std::uint8_t>(exponent < 254 ? exponent : 254);
        }
        for (std::size_t i = 0; i < m; i += W) {
            const std::size_t count = m - i < W ? m - i : W;
            put_bits(out + m, i, signs(load_some(x + i, count)), count);
        }
    }

    static float value(Block in, std::size_t m, std::size_t i) {
        const float magnitude = float_of(std::uint32_t{in.codes[i]} << 23) * in.scale;
        return bit(in.codes + m, i) ? -magnitude : magnitude;
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        add_terms<4>(payloads, block, sink, [&](std::size_t r, std::size_t first) {
            const Block in = at(r);
            fetch_ahead(in.codes + first);
            return [codes = in.codes, factor = fill(in.scale)](std::size_t i) {
                return mul(negated(bits_at(codes + block, i), from_exponents(codes + i)), factor);
            };
        });
    }
};

}  // namespace
}  // namespace gradwire
