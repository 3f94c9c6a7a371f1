// Passes from one vector to another: casting, adding, dividing, and streaming to measure the
// machine.
namespace gradwire {
namespace {

// The number of elements before the next address that whole vectors may be streamed to; n if there
// is none.
template <class T>
inline std::size_t head(const T* target, std::size_t n) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(target) % alignment;
    if (past % sizeof(T) != 0) return n;
    const std::size_t count = past == 0 ? 0 : (alignment - past) / sizeof(T);
    return count < n ? count : n;
}

// target[i] = source(i) for whole vectors, with plain stores outside the aligned middle. read: what
// source reads.
template <class S, class T, class Source>
inline void write(const S* read, T* target, std::size_t n, bool around, Source source) {
    const auto partial = [&](std::size_t from, std::size_t to) {
        for (; from < to; from += W) {
            const std::size_t count = to - from < W ? to - from : W;
            T last[W];
            store(last, source(from, count));
            __builtin_memcpy(target + from, last, count * sizeof(T));
        }
    };
    std::size_t i = 0;
    if (around) {
        i = head(target, n);
        partial(0, i);
        constexpr std::size_t several = 64;  // whole lines of any type
        for (; has_short_window && i + several <= n; i += several) {
            fetch_far(read + i, several);
#pragma GCC unroll 8
            for (std::size_t j = i; j < i + several; j += W) stream(target + j, source(j, W));
        }
        for (; i + W <= n; i += W) stream(target + i, source(i, W));
        fence();
    }
    for (; i + W <= n; i += W) store(target + i, source(i, W));
    partial(i, n);
}

// The bound from which on rounding to `to` gives inf or NaN.
inline Bound overflow_bound(Float to) {
    return bound(to == Float::fp16 ? 0x477ff000u : to == Float::bf16 ? 0x7f7f8000u : infinity_bits);
}

bool cast(Float from, Float to, const void* source, void* target, std::size_t n, bool around) {
    const Bound limit = overflow_bound(to);
    Seen seen;
    with_type(from, source, [&](const auto* in) {
        with_type(to, target, [&](auto* out) {
            write(in, out, n, around, [&](std::size_t i, std::size_t count) {
                const Vector v = load_some(in + i, count);
                seen.look(v, limit);
                return v;
            });
        });
    });
    return !seen.any();
}

void add_into(Float type, const void* source, float* sum, std::size_t n, float factor) {
    const Vector by = fill(factor);
    with_type(type, source, [&](const auto* in) {
        write(in, sum, n, false, [&](std::size_t i, std::size_t count) {
            return add(load_some(sum + i, count), mul(load_some(in + i, count), by));
        });
    });
}

// Dividing by a power of two and multiplying with its inverse give the same bits.
inline bool has_exact_inverse(float divisor) {
    const std::uint32_t bits = bits_of(divisor);
    return (bits & 0x7fffffu) == 0 && (bits & magnitude_mask) >> 23 >= 1 &&
           (bits & magnitude_mask) >> 23 <= 252;
}

void divide(Float type, const float* sum, float divisor, void* target, std::size_t n,
            bool around) {
    const bool exact = has_exact_inverse(divisor);
    const Vector by = fill(exact ? 1.0f / divisor : divisor);
    with_type(type, target, [&](auto* out) {
        if (exact) {
            write(sum, out, n, around, [&](std::size_t i, std::size_t count) {
                return mul(load_some(sum + i, count), by);
            });
        } else {
            write(sum, out, n, around, [&](std::size_t i, std::size_t count) {
                return div(load_some(sum + i, count), by);
            });
        }
    });
}

void stream_update(const float* g, float* u, float* v, std::size_t n, float momentum) {
    const Vector m = fill(momentum);
    std::size_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
#pragma GCC unroll 8
        for (std::size_t j = i; j < i + 4 * W; j += W) {
            const Pair next = forward<Mode::momentum>(load(g + j), load(u + j), load(v + j), m);
            store(u + j, next.u);
            store(v + j, next.v);
        }
    }
    for (; i < n; ++i) {
        u[i] = momentum * u[i] + g[i];
        v[i] = v[i] + u[i];
    }
}

std::uint32_t stream_read(const float* x, std::size_t n) {
    Vector all[4] = {fill(0), fill(0), fill(0), fill(0)};
    std::size_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
#pragma GCC unroll 8
        for (std::size_t j = 0; j < 4; ++j) all[j] = bit_or(all[j], load(x + i + j * W));
    }
    float lane[W];
    store(lane, bit_or(bit_or(all[0], all[1]), bit_or(all[2], all[3])));
    std::uint32_t out = 0;
    for (std::size_t j = 0; j < W; ++j) out |= bits_of(lane[j]);
    for (; i < n; ++i) out |= bits_of(x[i]);
    return out;
}

// target: aligned to a line. Elements that fill no two vectors are left out.
void stream_halve(const float* x, float* target, std::size_t n) {
    for (std::size_t i = 0; i + 2 * W <= n; i += 2 * W)
        stream(target + i / 2, bit_or(load(x + i), load(x + i + W)));
    fence();
}

}  // namespace
}  // namespace gradwire
