// TernGrad: -1, 0 or 1 at random, five to a byte, one scale for all.
namespace gradwire {
namespace {

// Five digits of base 3 in a byte. The number they form, over 243, is stored as a fraction of 256:
// three times the byte has the next digit above its eight bits. Part p of a block is digit p, the
// first the most significant. Any byte is a valid code. In a whole block, the elements of 32 bytes
// are 0, 16, 1, 17, …: digits are computed in 16-bit lanes, of which every other one is a vector.
struct Ternary {
    static constexpr std::size_t block = 1280;
    static constexpr float steps = 1.0f;
    static constexpr float one = 1.0f;
    static constexpr bool stochastic = true;
    static constexpr bool one_scale = true;
    static constexpr bool mean = false;
    static constexpr std::size_t bytes(std::size_t m) { return (m + 4) / 5; }

    // The byte that holds element j of a part.
    static constexpr std::size_t place(std::size_t m, std::size_t j) {
        return m < block ? j : j / 32 * 32 + j % 16 * 2 + j / 16 % 2;
    }

    static void encode(const float* x, std::size_t m, float inverse, const std::uint32_t* random,
                       std::uint8_t* out) {
        std::uint8_t digit[block];
        for (std::size_t i = 0; i < m; ++i) {
            const float y = float_of(bits_of(x[i]) & magnitude_mask) * inverse;
            const std::int32_t one = unit(random[i]) < y ? 1 : 0;
            digit[i] = static_cast<std::uint8_t>(1 + (x[i] < 0.0f ? -one : one));
        }
        const std::size_t h = bytes(m);
        for (std::size_t i = m; i < 5 * h; ++i) digit[i] = 0;
        std::uint8_t byte[block / 5];
        for (std::size_t j = 0; j < h; ++j) {
            const std::uint32_t number = 81u * digit[j] + 27u * digit[h + j] +
                                         9u * digit[2 * h + j] + 3u * digit[3 * h + j] +
                                         digit[4 * h + j];
            byte[j] = static_cast<std::uint8_t>((number * 256u + 242u) / 243u);
        }
        if (m < block) {
            __builtin_memcpy(out, byte, h);
            return;
        }
        for (std::size_t j = 0; j < h; j += 32) {
            for (std::size_t i = 0; i < 16; ++i) {
                out[j + 2 * i] = byte[j + i];
                out[j + 2 * i + 1] = byte[j + 16 + i];
            }
        }
    }

    static float value(Block in, std::size_t m, std::size_t i) {
        const std::size_t h = bytes(m);
        std::uint32_t fraction = in.codes[place(m, i % h)];
        for (std::size_t p = i / h; p > 0; --p) fraction = 3u * fraction & 255u;
        return static_cast<float>(static_cast<int>(3u * fraction >> 8) - 1) * in.scale;
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        constexpr std::size_t h = block / 5;
        constexpr float meaning[16] = {-1.0f, 0.0f, 1.0f};
        // Per part, 32 bytes are two vectors of 16 lanes, or four of 8; two are taken at a time.
        constexpr std::size_t G = W / 8;  // groups whose sums fit into registers together
        for (std::size_t first = 0; first < h; first += 32 * G) {
            for (std::size_t half = 0; half < 16; half += W) {
                Vector sum[G][5][2];
                const auto each = [&](auto visit) {
#pragma GCC unroll 8
                    for (std::size_t g = 0; g < G; ++g)
#pragma GCC unroll 8
                        for (std::size_t p = 0; p < 5; ++p) {
                            const std::size_t i = p * h + first + 32 * g + half;
                            visit(sum[g][p][0], i);
                            visit(sum[g][p][1], i + 16);
                        }
                };
                each([&](Vector& v, std::size_t i) { v = sink.open(i); });
                for (std::size_t r = 0; r < payloads; ++r) {
                    const Block in = at(r);
                    const Table values = table(meaning, in.scale);
                    fetch_ahead(in.codes + first);
#pragma GCC unroll 8
                    for (std::size_t g = 0; g < G; ++g) {
                        Fractions rest = fractions(in.codes + first + 32 * g + 2 * half);
#pragma GCC unroll 8
                        for (std::size_t p = 0; p < 5; ++p) {
                            const Small digits = thirds(rest);
                            Vector* const two = sum[g][p];
                            two[0] = gradwire::add(two[0], lookup(values, digits));
                            two[1] = gradwire::add(two[1], lookup(values, shifted(digits, 16)));
                            rest = tripled(rest);
                        }
                    }
                }
                each([&](Vector v, std::size_t i) { sink.close(i, v); });
            }
        }
    }
};

}  // namespace
}  // namespace gradwire
