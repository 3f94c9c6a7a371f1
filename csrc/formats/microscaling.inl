// OCP Microscaling: floats of 4, 6 or 8 bits, 32 of which share a power of two; in blocks of 256.
namespace gradwire {
namespace {

// Layout: the exponents of a block's scales, a byte each, then the codes. Those of 8 bits take a
// byte each. Of the others the lowest four bits come first, part p in the bits from 4 p on of every
// byte, then the bits above them, likewise. No code is infinite: what is beyond the largest value
// is sent as that. Codes are decoded by way of fp16, which has room for all mantissas.
template <int width, int mantissa>
struct Microscaling {
    static constexpr std::size_t block = 256;
    static constexpr std::size_t shared = 32;
    static constexpr float steps = 0.0f;
    static constexpr float one = 1.0f;
    static constexpr bool stochastic = false;
    static constexpr bool one_scale = false;
    static constexpr bool mean = false;

    static constexpr std::uint32_t top_exponent = 1u << (width - 2 - mantissa);
    static constexpr std::uint32_t bias = top_exponent - 1;
    // All codes stand for numbers except e4m3's last.
    static constexpr std::uint32_t most = (1u << (width - 1)) - (width == 8 ? 2 : 1);
    static constexpr std::uint32_t most_scale = 254 - top_exponent;
    static constexpr int within = mantissa == 1;  // shifted so far in its byte; no more fits
    static constexpr int left = 10 - mantissa - within;
    static constexpr float up = 1u << (15 - bias);  // fp16's bias is 15
    static constexpr int low = width < 8 ? 4 : 8;
    static constexpr std::size_t together = 4 * W;  // summed at once; at most 64: one part

    static constexpr std::size_t scales(std::size_t m) { return (m + shared - 1) / shared; }
    static constexpr std::size_t lower(std::size_t m) { return width < 8 ? (m + 1) / 2 : m; }
    static constexpr std::size_t upper(std::size_t m) { return width == 6 ? (m + 3) / 4 : 0; }
    static constexpr std::size_t bytes(std::size_t m) { return scales(m) + lower(m) + upper(m); }

    static void encode(const float* x, std::size_t m, float, const std::uint32_t*,
                       std::uint8_t* out) {
        alignas(64) std::uint8_t code[block + 3] = {};
        for (std::size_t i = 0; i < m; i += shared)
            *out++ = encode_shared(x + i, m - i < shared ? m - i : shared, code + i);
        if (width == 8) {
            __builtin_memcpy(out, code, m);
            return;
        }
        pack<4>(code, lower(m), 0, out);
        if (width == 6) pack<2>(code, upper(m), 4, out + lower(m));
    }

    static float value(Block in, std::size_t m, std::size_t i) {
        const std::uint8_t* const codes = in.codes + scales(m);
        std::uint32_t code = codes[i % lower(m)] >> (i / lower(m) * low % 8);
        if (width < 8) code &= 15;
        if (width == 6)
            code |= (codes[lower(m) + i % upper(m)] >> (i / upper(m) * 2) & 3u) << 4;
        return meaning_of(code) * (scale_of(in.codes[i / shared]) * in.scale);
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        alignas(64) std::uint8_t code[together];
        float meaning[16];
        for (std::uint32_t i = 0; i < 16; ++i) meaning[i] = meaning_of(i);
        const Table values = table(meaning, 1.0f);  // of four bits
        add_terms<4>(payloads, block, sink, [&](std::size_t r, std::size_t first) {
            const Block in = at(r);
            fetch_ahead(in.codes + first);
            const std::uint8_t* const codes = in.codes + scales(block);
            if constexpr (width > 4) unpack(codes, first, code);
            const std::uint8_t* const from =
                width > 4 ? code : codes + first % lower(block);
            const int shift = width > 4 ? 0 : static_cast<int>(first / lower(block)) * 4;
            constexpr std::size_t groups = (together + shared - 1) / shared;
            Vector scale[groups];
            for (std::size_t j = 0; j < groups; ++j)
                scale[j] = fill(scale_of(in.codes[first / shared + j]) * in.scale);
            return [=](std::size_t i) {
                const std::uint8_t* const here = from + (i - first);
                const Vector by = scale[(i - first) / shared];
                if constexpr (width == 4) return mul(lookup(values, shifted(small(here), shift)), by);
                return mul(mul(from_minifloat(here, left), fill(up)), by);
            };
        });
    }

private:
    static constexpr std::uint64_t each = 0x0101010101010101u;

    static float scale_of(std::uint32_t exponent) {
        return float_of((exponent < most_scale ? exponent : most_scale) << 23);
    }

    static float meaning_of(std::uint32_t code) {
        return widen(as_half(static_cast<std::uint8_t>(in_bytes(code)), left)) * up;
    }

    // Aligns eight codes, or one, in their bytes, with the signs in bit 7.
    static std::uint64_t in_bytes(std::uint64_t code) {
        constexpr std::uint64_t rest = (1u << (width - 1)) - 1, sign = 1u << (width - 1);
        return (code & rest * each) << within | (code & sign * each) << (8 - width);
    }

    // Returns the exponent of the scale: that of the largest magnitude, minus that of the largest
    // code.
    static std::uint8_t encode_shared(const float* x, std::size_t m, std::uint8_t* code) {
        constexpr std::uint32_t exponents = 0x7f800000u, least_normal = (128 - bias) << 23;
        constexpr std::uint32_t dropped = static_cast<std::uint32_t>(23 - mantissa);
        std::uint32_t largest = 0;
        for (std::size_t i = 0; i < m; ++i) {
            const std::uint32_t magnitude = bits_of(x[i]) & magnitude_mask;
            largest = largest > magnitude ? largest : magnitude;
        }
        const bool scaled = largest >= bits_of(least_scaled);
        const std::uint32_t exponent = (largest >> 23) - top_exponent;
        const float inverse = scaled ? float_of((254 - exponent) << 23) : 0.0f;
        for (std::size_t i = 0; i < m; ++i) {
            const float y = x[i] * inverse;
            const std::uint32_t rest = bits_of(y) & magnitude_mask, own = rest & exponents;
            const std::uint32_t binade = own > least_normal ? own : least_normal;
            // The last bit of a sum with this number is worth a step.
            const std::uint32_t base = binade + (dropped << 23);
            const std::uint32_t steps_of_it = bits_of(float_of(rest) + float_of(base)) - base;
            const std::uint32_t found = ((binade - least_normal) >> dropped) + steps_of_it;
            const std::uint32_t sign = bits_of(y) >> 31 << (width - 1);
            code[i] = static_cast<std::uint8_t>((found < most ? found : most) | sign);
        }
        return static_cast<std::uint8_t>(scaled ? exponent : 0);
    }

    template <int bits>
    static void pack(const std::uint8_t* code, std::size_t h, int shift, std::uint8_t* out) {
        for (std::size_t j = 0; j < h; ++j) {
            std::uint32_t byte = 0;
            for (std::size_t p = 0; p < 8 / bits; ++p)
                byte |= (std::uint32_t{code[p * h + j]} >> shift & ((1u << bits) - 1)) << (p * bits);
            out[j] = static_cast<std::uint8_t>(byte);
        }
    }

    // Unpacks the codes of `together` elements of a whole block, eight in a word, because vectors
    // of bytes have no shifts.
    static void unpack(const std::uint8_t* codes, std::size_t first, std::uint8_t* out) {
        const std::uint8_t* const from = codes + first % lower(block);
        const int shift = static_cast<int>(first / lower(block)) * low % 8;
        const std::uint8_t* const more = codes + lower(block) + first % 64;
        const int above = static_cast<int>(first / 64) * 2;
        for (std::size_t k = 0; k < together; k += 8) {
            std::uint64_t code;
            __builtin_memcpy(&code, from + k, sizeof code);
            if (width < 8) code = code >> shift & 15 * each;
            if (width == 6) {
                std::uint64_t upper_bits;
                __builtin_memcpy(&upper_bits, more + k, sizeof upper_bits);
                code |= (upper_bits >> above & 3 * each) << 4;
            }
            code = in_bytes(code);
            __builtin_memcpy(out + k, &code, sizeof code);
        }
    }
};

}  // namespace
}  // namespace gradwire
