// Codes of a whole vector: written block by block, summed, and added.
namespace gradwire {
namespace {

template <class Work>
inline auto with_format(Format format, Work work) {
    switch (format) {
        case Format::int8: return work(Int8{});
        case Format::e4m3: return work(E4m3{});
        case Format::e5m2: return work(E5m2{});
        case Format::levels2: return work(PackedLevels<2>{});
        case Format::levels4: return work(PackedLevels<4>{});
        case Format::levels8: return work(ByteLevels{});
        case Format::ternary: return work(Ternary{});
        case Format::lloyd1: return work(Lloyd<1>{});
        case Format::lloyd2: return work(Lloyd<2>{});
        case Format::e2m1x: return work(Microscaling<4, 1>{});
        case Format::e3m2x: return work(Microscaling<6, 2>{});
        case Format::e2m3x: return work(Microscaling<6, 3>{});
        case Format::e4m3x: return work(Microscaling<8, 3>{});
        default: return work(Powers{});
    }
}

// Encodes whole blocks and, if elements are left, a shorter last one.
template <class F, class T>
bool encode_blocks(const T* x, std::size_t first, std::size_t n, Noise noise, float given,
                   std::uint8_t* codes, float* scales) {
    alignas(64) float held[F::block];
    alignas(64) std::uint32_t random[F::block];
    for (std::size_t begin = 0; begin < n; begin += F::block) {
        const std::size_t m = n - begin < F::block ? n - begin : F::block;
        const float* const block = as_fp32(x + begin, m, held);
        float largest = given;  // or the mean
        if constexpr (F::one_scale) {
            fetch_far(block, m);
        } else if constexpr (F::mean) {
            largest = mean_of(block, m);
            if (!(largest < float_of(infinity_bits))) return false;
        } else {
            const std::uint32_t bits = largest_of(block, m);
            if (bits >= infinity_bits) return false;
            largest = float_of(bits);
        }
        const bool scaled = largest >= least_scaled;
        if constexpr (F::steps > 0.0f && !F::one_scale)
            *scales++ = scaled ? capped(F::mean ? largest : largest / F::steps, most_scale(F::steps)) : 0.0f;
        if constexpr (F::stochastic) noise_block(noise, first + begin, m, random);
        const float by = F::mean ? largest : F::steps * F::one / largest;
        F::encode(block, m, scaled ? by : 0.0f, random, codes);
        codes += F::bytes(m);
    }
    return true;
}

// Writes around the cache: the codes of several blocks are first written inside it, so that whole
// cache lines go out. Stochastic formats do not do this: drawing random numbers takes longer than
// memory, and nothing is gained.
template <class F, class T>
bool encode_all(const T* x, std::size_t first, std::size_t n, Noise noise, float given,
                std::uint8_t* codes, float* scales, bool around) {
    if (F::stochastic || !around)
        return encode_blocks<F>(x, first, n, noise, given, codes, scales);
    constexpr std::size_t blocks = 4096 / F::bytes(F::block);
    constexpr std::size_t together = blocks * F::block;
    alignas(64) std::uint8_t written[blocks * F::bytes(F::block)];
    bool finite = true;
    for (std::size_t begin = 0; finite && begin < n; begin += together) {
        const std::size_t m = n - begin < together ? n - begin : together;
        finite = encode_blocks<F>(x + begin, first + begin, m, noise, given, written,
                                  scales + begin / F::block);
        const std::size_t rest = m % F::block;
        const std::size_t bytes = m / F::block * F::bytes(F::block) + F::bytes(rest);
        copy_around(codes, written, bytes);
        codes += bytes;
    }
    fence();
    return finite;
}

bool encode(Format format, Float type, const void* x, std::size_t first, std::size_t n, Noise noise,
            float given, std::uint8_t* codes, float* scales, bool around) {
    return with_format(format, [&](auto chosen) {
        return with_type(type, x, [&](const auto* in) {
            return encode_all<decltype(chosen)>(in, first, n, noise, given, codes, scales, around);
        });
    });
}

template <class F, class Sink>
void add_all(const Codes* payloads, std::size_t count, std::size_t n, float factor, Sink sink) {
    constexpr bool has_scales = F::steps > 0.0f;
    for (std::size_t i = 0; i < n; i += F::block) {
        const std::size_t m = n - i < F::block ? n - i : F::block;
        const std::size_t number = i / F::block;
        const auto at = [&](std::size_t r) {
            const float* const scales = payloads[r].scales;
            if constexpr (has_scales && !F::one_scale) __builtin_prefetch(scales + number + 32);
            const float scale = has_scales ? scales[F::one_scale ? 0 : number] : 1.0f;
            return Block{payloads[r].codes + number * F::bytes(F::block), scale * factor};
        };
        if (m == F::block) {
            F::add(count, at, sink.from(i));
            continue;
        }
        for (std::size_t j = 0; j < m; ++j) {
            float sum = sink.first(i + j);
            for (std::size_t r = 0; r < count; ++r) sum += F::value(at(r), m, j);
            sink.last(i + j, sum);
        }
    }
}

void accumulate(Format format, Float type, void* target, std::size_t n, const Codes* payloads,
                std::size_t count, float divisor, bool around) {
    with_format(format, [&](auto chosen) {
        with_quotient(type, target, divisor, around, [&](auto sink) {
            add_all<decltype(chosen)>(payloads, count, n, 1.0f, sink);
        });
    });
}

void add_codes(Format format, float* v, std::size_t n, Codes payload, float factor) {
    with_format(format, [&](auto chosen) {
        add_all<decltype(chosen)>(&payload, 1, n, factor, InPlace{v});
    });
}

}  // namespace
}  // namespace gradwire
