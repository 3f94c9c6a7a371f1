// Lloyd and Max: the levels with the least error for a normal distribution, in blocks of 512.
namespace gradwire {
namespace {

// One bit: the mean magnitude with a sign, best for any distribution. Two bits: also whether the
// magnitude is below or above a threshold. Levels are multiples of the mean magnitude, not of the
// deviation, so that nothing grows even if few elements of a block are large.
template <int width>
struct Lloyd : Packed<Lloyd<width>, width> {
    static constexpr float steps = 2.0f;  // no level is beyond this
    static constexpr float one = 1.0f;
    static constexpr bool stochastic = false;
    static constexpr bool one_scale = false;
    static constexpr bool mean = true;
    static constexpr float threshold = 1.2303f, inner = 0.5675f, outer = 1.8925f;

    static float meaning(int code) {
        if (width == 1) return code == 0 ? -1.0f : 1.0f;
        const float magnitude = code == 0 || code == 3 ? outer : inner;
        return code < 2 ? -magnitude : magnitude;
    }

    static std::uint32_t code_of(float x, float limit) {
        if (width == 1) return x < 0.0f ? 0u : 1u;
        const std::uint32_t far = float_of(bits_of(x) & magnitude_mask) > limit ? 1u : 0u;
        return x < 0.0f ? 1u - far : 2u + far;
    }

    static void encode(const float* x, std::size_t m, float scale, const std::uint32_t*,
                       std::uint8_t* out) {
        const float limit = threshold * scale;
        if (m == Lloyd::block) {
            constexpr std::size_t h = Lloyd::bytes(Lloyd::block);
            for (std::size_t j = 0; j < h; ++j) {
                std::uint32_t byte = 0;
#pragma GCC unroll 8
                for (std::size_t p = 0; p < Lloyd::parts; ++p)
                    byte |= code_of(x[p * h + j], limit) << (p * width);
                out[j] = static_cast<std::uint8_t>(byte);
            }
            return;
        }
        std::uint8_t code[Lloyd::block];
        for (std::size_t i = 0; i < m; ++i)
            code[i] = static_cast<std::uint8_t>(code_of(x[i], limit));
        Lloyd::pack(code, m, out);
    }
};

}  // namespace
}  // namespace gradwire
