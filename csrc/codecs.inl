// The quantizers, written over a Vector. Included after passes.inl, with GRADWIRE_CODECS set to
// the name of their table.
//
// A format works on one block in the first-level cache, in stages: each stage is a plain loop over
// fp32 or integers, which compilers vectorise for the instruction set at hand. Nothing depends on
// the width of a vector, so all versions give the same bits.

// clang-format off: in this order
#include "formats/common.inl"
#include "formats/signed_bytes.inl"
#include "formats/float8.inl"
#include "formats/levels.inl"
#include "formats/ternary.inl"
#include "formats/powers.inl"
// clang-format on

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
        default: return work(Powers{});
    }
}

// -- over a whole vector ---------------------------------------------------------------------------

// A block as fp32: in place, or widened into `held`.
inline const float* as_fp32(const float* x, std::size_t, float*) { return x; }
template <class T>
inline const float* as_fp32(const T* x, std::size_t m, float* held) {
    write(held, m, false,
          [&](std::size_t i, std::size_t count) { return load_some(x + i, count); });
    return held;
}

void noise_block(Noise noise, std::size_t first, std::size_t n, std::uint32_t* target) {
    const auto begin = static_cast<std::uint32_t>(first);
    for (std::size_t i = 0; i < n; ++i)
        target[i] = random_bits(begin + static_cast<std::uint32_t>(i), noise);
}

// Whole blocks, and perhaps a last one that is shorter.
template <class F, class T>
bool encode_blocks(const T* x, std::size_t first, std::size_t n, Noise noise, float given,
                   std::uint8_t* codes, float* scales) {
    alignas(64) float held[F::block];
    alignas(64) std::uint32_t random[F::block];
    for (std::size_t begin = 0; begin < n; begin += F::block) {
        const std::size_t m = n - begin < F::block ? n - begin : F::block;
        const float* const block = as_fp32(x + begin, m, held);
        float largest = given;
        if constexpr (F::one_scale) {
            fetch_far(block, m);
        } else {
            const std::uint32_t bits = largest_of(block, m);
            if (bits >= infinity_bits) return false;
            largest = float_of(bits);
        }
        const bool scaled = largest >= least_scaled;
        if constexpr (F::steps > 0.0f && !F::one_scale)
            *scales++ = scaled ? capped(largest / F::steps, most_scale(F::steps)) : 0.0f;
        if constexpr (F::stochastic) noise_block(noise, first + begin, m, random);
        F::encode(block, m, scaled ? F::steps * F::one / largest : 0.0f, random, codes);
        codes += F::bytes(m);
    }
    return true;
}

// Around the cache: by way of some blocks' codes inside it, so that whole lines are written. Where
// dice are thrown, that takes longer than memory does, and nothing is gained.
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

// Onto what v holds.
struct InPlace {
    float* v;
    Vector open(std::size_t i) const { return load(v + i); }
    void close(std::size_t i, Vector sum) const { store(v + i, sum); }
    InPlace from(std::size_t i) const { return {v + i}; }
    float first(std::size_t i) const { return v[i]; }
    void last(std::size_t i, float sum) const { v[i] = sum; }
};

// From zero, then divided, and written around the cache where the target is aligned for that.
template <class T, bool around, bool exact>
struct Quotient {
    T* out;
    Vector by;
    float divisor;
    Vector open(std::size_t) const { return fill(0); }
    void close(std::size_t i, Vector sum) const {
        const Vector value = exact ? mul(sum, by) : div(sum, by);
        if constexpr (around) {
            stream(out + i, value);
        } else {
            store(out + i, value);
        }
    }
    Quotient from(std::size_t i) const { return {out + i, by, divisor}; }
    float first(std::size_t) const { return 0.0f; }
    void last(std::size_t i, float sum) const { narrow(sum / divisor, out + i); }
};

// Calls work(sink) for the target and the divisor at hand.
template <class Work>
void with_quotient(Float type, void* target, float divisor, bool around, Work work) {
    const bool exact = has_exact_inverse(divisor);
    const Vector by = fill(exact ? 1.0f / divisor : divisor);
    const bool aligned = reinterpret_cast<std::uintptr_t>(target) % alignment == 0;
    with_type(type, target, [&](auto* out) {
        using T = std::remove_pointer_t<decltype(out)>;
        if (around && aligned && exact) return work(Quotient<T, true, true>{out, by, divisor});
        if (around && aligned) return work(Quotient<T, true, false>{out, by, divisor});
        if (exact) return work(Quotient<T, false, true>{out, by, divisor});
        return work(Quotient<T, false, false>{out, by, divisor});
    });
    fence();
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

void accumulate_dense(Float payloads_type, Float type, void* target, std::size_t n,
                      const void* const* payloads, std::size_t count, float divisor, bool around) {
    constexpr int U = 4;
    const std::size_t whole = n / (U * W) * (U * W);
    with_type(payloads_type, target, [&](auto* kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        const auto of = [&](std::size_t r) { return static_cast<const T*>(payloads[r]); };
        with_quotient(type, target, divisor, around, [&](auto sink) {
            add_terms<U>(count, whole, sink, [&](std::size_t r, std::size_t first) {
                const T* const from = of(r);
                for (std::size_t i = 0; i < U * W; i += 64 / sizeof(T))
                    __builtin_prefetch(from + first + i + 1024);
                return [from](std::size_t i) { return load(from + i); };
            });
            for (std::size_t i = whole; i < n; ++i) {
                float sum = sink.first(i);
                for (std::size_t r = 0; r < count; ++r) sum += widen(of(r)[i]);
                sink.last(i, sum);
            }
        });
    });
}

void add_codes(Format format, float* v, std::size_t n, Codes payload, float factor) {
    with_format(format, [&](auto chosen) {
        add_all<decltype(chosen)>(&payload, 1, n, factor, InPlace{v});
    });
}

// -- signs and sums --------------------------------------------------------------------------------

constexpr std::size_t sum_lanes = 64;
constexpr std::size_t sum_block = 4096;

// Sums of `Terms` values per element over one block, element i in lane i mod 64.
template <int Terms>
struct LaneSums {
    Vector lane[Terms][sum_lanes / W];

    LaneSums() {
        for (auto& term : lane)
            for (auto& one : term) one = fill(0);
    }
    void add_to(int term, std::size_t i, Vector v) {
        Vector& sum = lane[term][i / W % (sum_lanes / W)];
        sum = gradwire::add(sum, v);
    }
    double total(int term) const {
        float one[sum_lanes];
        for (std::size_t j = 0; j < sum_lanes / W; ++j) store(one + j * W, lane[term][j]);
        for (std::size_t half = sum_lanes / 2; half > 0; half /= 2)
            for (std::size_t j = 0; j < half; ++j) one[j] += one[j + half];
        return one[0];
    }
};

// Random bits for 64 elements: the upper ones of their numbers.
inline std::uint64_t coins(Noise noise, std::size_t first) {
    std::uint32_t random[64];
    noise_block(noise, first, 64, random);
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < 64; ++i) out |= std::uint64_t{random[i] >> 31} << i;
    return out;
}

// Which of up to 64 elements are zero.
template <class T>
std::uint64_t zeros_of(const T* x, std::size_t count) {
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < count; ++i) out |= std::uint64_t{widen(x[i]) == 0.0f} << i;
    return out;
}

// The sums are finite unless x is not, or is beyond any use: they tell, without a look at every
// element, whether x is.
template <class T>
SignSums pack_signs_all(const T* x, std::size_t n, const Noise* noise, std::uint8_t* bits) {
    SignSums out{0.0, 0.0, 0, true};
    const Vector zero = fill(0);
    for (std::size_t begin = 0; begin < n; begin += sum_block) {
        const std::size_t end = n - begin < sum_block ? n : begin + sum_block;
        LaneSums<2> sums;
        for (std::size_t i = begin; i < end; i += sum_lanes) {
            const std::size_t count = end - i < sum_lanes ? end - i : sum_lanes;
            std::uint64_t below = 0;
            std::uint32_t full = ~0u;  // lanes without a zero, over all vectors
            const auto take = [&](Vector v, std::size_t j) {
                const std::uint32_t mask = signs(gradwire::add(v, zero));  // -0 counts as 0
                sums.lane[0][j] = add_where(mask, sums.lane[0][j], v);
                sums.lane[1][j] = add_where(~mask, sums.lane[1][j], v);
                below |= std::uint64_t{mask} << (j * W);
                full &= nonzero(v);
            };
            fetch_far(x + i, sum_lanes);
            if (count == sum_lanes) {
#pragma GCC unroll 8
                for (std::size_t j = 0; j < sum_lanes / W; ++j) take(load(x + i + j * W), j);
            } else {
                for (std::size_t j = 0; j * W < count; ++j)
                    take(load_some(x + i + j * W, count - j * W < W ? count - j * W : W), j);
            }
            const bool some_zero = (~full & ((1u << W) - 1)) != 0;
            if (noise != nullptr && __builtin_expect(some_zero, 0))
                below |= coins(*noise, i) & zeros_of(x + i, count);
            __builtin_memcpy(bits + i / 8, &below, (count + 7) / 8);
            out.count_below += static_cast<std::size_t>(__builtin_popcountll(below));
        }
        out.below += sums.total(0);
        out.above += sums.total(1);
    }
    out.finite = out.above - out.below < static_cast<double>(float_of(infinity_bits));
    return out;
}

SignSums pack_signs(Float type, const void* x, std::size_t n, const Noise* noise,
                    std::uint8_t* bits) {
    return with_type(type, x, [&](const auto* in) { return pack_signs_all(in, n, noise, bits); });
}

template <class Sink>
void add_all_signs(const Signs* payloads, std::size_t count, std::size_t n, float factor,
                   Sink sink) {
    constexpr int U = 8;
    const std::size_t whole = n / (U * W) * (U * W);
    add_terms<U>(count, whole, sink, [&](std::size_t r, std::size_t first) {
        const Signs& in = payloads[r];
        fetch_ahead(in.bits + first / 8);
        return [bits = in.bits + first / 8, first,
                values = either(in.high() * factor, in.low() * factor)](std::size_t i) {
            return pick(values, bits, i - first);
        };
    });
    for (std::size_t i = whole; i < n; ++i) {
        float sum = sink.first(i);
        for (std::size_t r = 0; r < count; ++r)
            sum += (bit(payloads[r].bits, i) ? payloads[r].low() : payloads[r].high()) * factor;
        sink.last(i, sum);
    }
}

void accumulate_signs(Float type, void* target, std::size_t n, const Signs* payloads,
                      std::size_t count, float divisor, bool around) {
    with_quotient(type, target, divisor, around,
                  [&](auto sink) { add_all_signs(payloads, count, n, 1.0f, sink); });
}

void add_signs(float* v, std::size_t n, Signs payload, float factor) {
    add_all_signs(&payload, 1, n, factor, InPlace{v});
}

template <class T>
std::uint32_t largest_all(const T* x, std::size_t n, double* squares) {
    alignas(64) float held[sum_block];
    std::uint32_t most = 0;
    double total = 0.0;
    for (std::size_t begin = 0; begin < n; begin += sum_block) {
        const std::size_t m = n - begin < sum_block ? n - begin : sum_block;
        const float* const block = as_fp32(x + begin, m, held);
        const std::uint32_t here = largest_of(block, m);
        most = here > most ? here : most;
        if (squares == nullptr) continue;
        LaneSums<1> sums;
        for (std::size_t i = 0; i < m; i += W) {
            const Vector v = load_some(block + i, m - i < W ? m - i : W);
            sums.add_to(0, i, mul(v, v));
        }
        total += sums.total(0);
    }
    if (squares != nullptr) *squares = total;
    return most;
}

std::uint32_t largest(Float type, const void* x, std::size_t n, double* squares) {
    return with_type(type, x, [&](const auto* in) { return largest_all(in, n, squares); });
}

}  // namespace

extern const Codecs GRADWIRE_CODECS = {encode,           accumulate, accumulate_dense, add_codes, pack_signs,
                                       accumulate_signs, add_signs,  largest,   noise_block};

}  // namespace gradwire
