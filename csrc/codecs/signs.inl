// One bit per element, and what its two values are computed from: sums and the largest magnitude.
namespace gradwire {
namespace {

// Random bits for 64 elements: the highest bit of each one's random number.
inline std::uint64_t coins(Noise noise, std::size_t first) {
    std::uint32_t random[64];
    noise_block(noise, first, 64, random);
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < 64; ++i) out |= std::uint64_t{random[i] >> 31} << i;
    return out;
}

// Sets the bits of the elements that are zero, of up to 64, even where subnormal numbers count as
// zero for arithmetic.
template <class T>
std::uint64_t zeros_of(const T* x, std::size_t count) {
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < count; ++i) out |= std::uint64_t{(bits_of(widen(x[i])) & magnitude_mask) == 0} << i;
    return out;
}

// The sums are finite unless x is not, or is too large to be of use. So they show whether x is
// finite, and not every element needs a check.
template <class T>
SignSums pack_signs_all(const T* x, std::size_t n, const Noise* noise, std::uint8_t* bits) {
    SignSums out{0.0, 0.0, 0, true};
    TreeSum of_below, of_above;
    for (std::size_t begin = 0; begin < n; begin += sum_block) {
        const std::size_t end = n - begin < sum_block ? n : begin + sum_block;
        LaneSums<2> sums;
        for (std::size_t i = begin; i < end; i += sum_lanes) {
            const std::size_t count = end - i < sum_lanes ? end - i : sum_lanes;
            std::uint64_t below = 0;
            std::uint32_t full = ~0u;  // lanes without a zero, over all vectors
            const auto take = [&](Vector v, std::size_t j) {
                const std::uint32_t mask = negatives(v);
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
        of_below.add(sums.total(0));
        of_above.add(sums.total(1));
    }
    out.below = of_below.total();
    out.above = of_above.total();
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
    TreeSum total;
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
        total.add(sums.total(0));
    }
    if (squares != nullptr) *squares = total.total();
    return most;
}

std::uint32_t largest(Float type, const void* x, std::size_t n, double* squares) {
    return with_type(type, x, [&](const auto* in) { return largest_all(in, n, squares); });
}

}  // namespace
}  // namespace gradwire
