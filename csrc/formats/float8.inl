// 8-bit floats times a scale: E4M3 and E5M2, in blocks of 256.
namespace gradwire {
namespace {

// An 8-bit float with these mantissa bits and this least exponent. It is decoded by way of fp16:
// e5m2 is the upper half of one, and e4m3 is the same with one exponent bit less.
template <int mantissa, int least_exponent, int largest_value>
struct Float8 {
    static constexpr std::size_t block = 256;
    static constexpr float steps = largest_value;
    static constexpr float one = 1.0f;
    static constexpr bool stochastic = false;
    static constexpr bool one_scale = false;
    static constexpr bool mean = false;
    static constexpr int left = 10 - mantissa;
    static constexpr float up = least_exponent == -6 ? 256.0f : 1.0f;  // fp16 goes down to -14
    static constexpr std::size_t bytes(std::size_t m) { return m; }

    static void encode(const float* x, std::size_t m, float inverse, const std::uint32_t*,
                       std::uint8_t* out) {
        constexpr int dropped = 23 - mantissa;
        constexpr std::uint32_t half = (1u << (dropped - 1)) - 1;
        constexpr std::uint32_t bias = static_cast<std::uint32_t>(126 + least_exponent);
        constexpr std::uint32_t least_normal = (bias + 1) << 23;
        // The last bit of a sum with this number is worth the least subnormal.
        const float base = float_of((bias + 1 + static_cast<std::uint32_t>(dropped)) << 23);
        for (std::size_t i = 0; i < m; ++i) {
            const float y = x[i] * inverse;
            const std::uint32_t sign = bits_of(y) >> 31 << 7;
            const std::uint32_t rest = bits_of(y) & magnitude_mask;
            const std::uint32_t even = rest >> dropped & 1u;
            const std::uint32_t normal = ((rest + half + even) >> dropped) - (bias << mantissa);
            const std::uint32_t small = bits_of(float_of(rest) + base) - bits_of(base);
            out[i] = static_cast<std::uint8_t>(sign | (rest < least_normal ? small : normal));
        }
    }

    static float value(Block in, std::size_t, std::size_t i) {
        return widen(as_half(in.codes[i], left)) * (up * in.scale);
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        add_terms<4>(payloads, block, sink, [&](std::size_t r, std::size_t first) {
            const Block in = at(r);
            fetch_ahead(in.codes + first);
            return [codes = in.codes, scale = fill(up * in.scale)](std::size_t i) {
                return mul(from_minifloat(codes + i, left), scale);
            };
        });
    }
};

using E4m3 = Float8<3, -6, 448>;
using E5m2 = Float8<2, -14, 57344>;

}  // namespace
}  // namespace gradwire
