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

    static void encode(const float* x, std::size_t m, float scale, const std::uint32_t*,
                       std::uint8_t* out) {
        constexpr int positive = 1 << (width - 1);
        const float limit = threshold * scale;
        std::uint8_t code[Lloyd::block];
        for (std::size_t i = 0; i < m; ++i) {
            const int far = width == 2 && float_of(bits_of(x[i]) & magnitude_mask) > limit ? 1 : 0;
            code[i] = static_cast<std::uint8_t>(x[i] < 0.0f ? positive - 1 - far : positive + far);
        }
        Lloyd::pack(code, m, out);
    }
};

}  // namespace
}  // namespace gradwire
