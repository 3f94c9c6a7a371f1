// The passes over memory, written over a Vector. Included once by plain.cpp, avx2.cpp and
// avx512.cpp, after the header with their Vector and with GRADWIRE_PASSES set to the name of their
// table.
//
// Everything lives in the unnamed namespace and uses nothing of the standard library that could be
// emitted as a shared symbol: code for AVX-512 must not be linked into the plain version.

namespace gradwire {
namespace {

constexpr std::size_t W = Vector::width;
constexpr std::size_t alignment = 64;

// A page and more ahead: processors stop at the end of a page on their own.
template <class T>
inline void fetch_far(const T* x, std::size_t n) {
    constexpr std::size_t line = 64 / sizeof(T);
    constexpr std::size_t ahead = 16384 / sizeof(T);
    for (std::size_t i = 0; i < n; i += line) __builtin_prefetch(x + ahead + i);
}

inline Bound finite_bound() { return bound(infinity_bits); }

// Where a block has groups with a candidate. The main loop only notes them, without a branch that
// is hard to predict; they are looked at again while the block is in the first-level cache.
template <int U>
struct Notes {
    static constexpr std::size_t groups = watched_block / (U * W);
    static constexpr std::size_t block = groups * U * W;
    std::uint32_t at[groups + 1];
    std::size_t count = 0;

    void add(std::size_t group_start, bool wanted) {
        at[count] = static_cast<std::uint32_t>(group_start);
        count += wanted;
    }
};

// Appends the candidates among the noted groups of x, whose first index is `first`. Returns
// whether those groups are finite.
template <int U, class T>
inline bool collect(const T* x, const Notes<U>& notes, Candidates& found, std::size_t first) {
    std::uint32_t bad = 0;
    Bound least = bound(found.threshold);
    std::size_t count = found.count;
    for (std::size_t group = 0; group < notes.count; ++group) {
        if (__builtin_expect(count > found.capacity, 0)) {
            found.count = count;
            found.make_room(found);
            count = found.count;
            least = bound(found.threshold);
        }
#pragma GCC unroll 8
        for (int j = 0; j < U; ++j) {
            const std::size_t at = notes.at[group] + j * W;
            const Vector value = load(x + at);
            const std::uint32_t excluded = reaches(value, finite_bound());
            bad |= excluded;
            count += compress(value, reaches(value, least) & ~excluded,
                              static_cast<std::uint32_t>(first + at), found.bits + count,
                              found.index + count);
        }
    }
    found.count = count;
    return bad == 0;
}

// Lanes of the mask get the old values back. Rare, so it goes through memory.
inline Vector restored(Vector now, const float* old, std::uint32_t mask) {
    float lane[W];
    store(lane, now);
    for (; mask != 0; mask &= mask - 1) {
        const int i = __builtin_ctz(mask);
        lane[i] = old[i];
    }
    return load(lane);
}

struct Pair {
    Vector u;
    Vector v;
};

// One step of the recurrence; each operation is rounded on its own.
template <Mode mode>
inline Pair forward(Vector d, Vector u, Vector v, Vector m) {
    if constexpr (mode == Mode::feedback) {
        return {u, add(mul(m, v), d)};
    } else if constexpr (mode == Mode::momentum) {
        const Vector next = add(mul(m, u), d);
        return {next, add(v, next)};
    } else {
        const Vector next = mul(m, add(u, d));
        return {next, add(add(v, next), d)};
    }
}

// U vectors. A non-finite u always makes v non-finite, so v alone is looked at. Returns whether
// any of the new v reaches the bound; clears finite where an element had to be kept.
template <Mode mode, int U, class G>
inline bool update_group(const G* g, float* u, float* v, Vector m, Vector s, Bound least,
                         bool& finite) {
    constexpr bool has_u = mode != Mode::feedback;
    Pair next[U];
    std::uint32_t any = 0;
    std::uint32_t bad = 0;
#pragma GCC unroll 8
    for (int j = 0; j < U; ++j) {
        const Vector d = mul(load(g + j * W), s);
        const Vector old = has_u ? load(u + j * W) : d;
        next[j] = forward<mode>(d, old, load(v + j * W), m);
        any |= reaches(next[j].v, least);
        bad |= reaches(next[j].v, finite_bound());
    }
    if (__builtin_expect(bad != 0, 0)) {
        finite = false;
#pragma GCC unroll 8
        for (int j = 0; j < U; ++j) {
            const std::uint32_t kept = reaches(next[j].v, finite_bound());
            next[j].v = restored(next[j].v, v + j * W, kept);
            if constexpr (has_u) next[j].u = restored(next[j].u, u + j * W, kept);
            any |= reaches(next[j].v, least);
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < U; ++j) {
        if constexpr (has_u) store(u + j * W, next[j].u);
        store(v + j * W, next[j].v);
    }
    return any != 0;
}

// Runs a group of one vector on the last n < W elements, in buffers padded with zeros.
template <class G, class Group>
inline void on_tail(const G* g, float* u, float* v, std::size_t n, Group group) {
    G gradient[W] = {};
    float velocity[W] = {};
    float residual[W] = {};
    __builtin_memcpy(gradient, g, n * sizeof(G));
    if (u != nullptr) __builtin_memcpy(velocity, u, n * sizeof(float));
    __builtin_memcpy(residual, v, n * sizeof(float));
    group(gradient, velocity, residual);
    if (u != nullptr) __builtin_memcpy(u, velocity, n * sizeof(float));
    __builtin_memcpy(v, residual, n * sizeof(float));
}

template <class T>
inline Vector load_some(const T* from, std::size_t count) {
    if (count == W) return load(from);
    T last[W] = {};
    __builtin_memcpy(last, from, count * sizeof(T));
    return load(last);
}

// Whether any |s·g| reaches the bound. Leaves g in the first-level cache.
template <class G>
inline bool any_reaches(const G* g, std::size_t n, Vector s, Bound least) {
    Seen seen;
    std::size_t i = 0;
    for (; i + W <= n; i += W) seen.look(mul(load(g + i), s), least);
    if (i < n) seen.look(mul(load_some(g + i, n - i), s), least);
    return seen.any();
}

constexpr int update_unroll = 4;
constexpr int scan_unroll = 4;

// Groups of U vectors from element i on, block after block; returns where it stopped.
template <Mode mode, int U, class G>
std::size_t update_blocks(const G* g, float* u, float* v, std::size_t i, std::size_t n,
                          Recurrence how, Candidates& found, bool& finite, std::size_t first = 0) {
    const Vector m = fill(how.momentum);
    const Vector s = fill(how.scale);
    while (i + U * W <= n) {
        const std::size_t end = n - i < Notes<U>::block ? n : i + Notes<U>::block;
        const Bound least = bound(found.threshold);
        Notes<U> notes;
        for (; i + U * W <= end; i += U * W) {
            notes.add(i, update_group<mode, U>(g + i, u + i, v + i, m, s, least, finite));
        }
        collect(v, notes, found, first);
    }
    return i;
}

// From element i to the last; i is 0 or a multiple of the block.
template <Mode mode, class G>
void update_range(const G* g, float* u, float* v, std::size_t i, std::size_t n, Recurrence how,
                  Candidates& found, bool& finite) {
    i = update_blocks<mode, update_unroll>(g, u, v, i, n, how, found, finite);
    i = update_blocks<mode, 1>(g, u, v, i, n, how, found, finite);
    if (i == n) return;
    float* const velocity = mode == Mode::feedback ? nullptr : u + i;
    on_tail(g + i, velocity, v + i, n - i, [&](const G* a, float* b, float* c) {
        update_blocks<mode, 1>(a, b, c, 0, W, how, found, finite, i);
    });
}

template <Mode mode, class G>
bool update_all(const G* g, float* u, float* v, std::size_t n, Recurrence how, Candidates& found,
                const Watch* watch) {
    bool finite = true;
    if (watch == nullptr) {
        update_range<mode>(g, u, v, 0, n, how, found, finite);
        return finite;
    }
    const Vector s = fill(how.scale);
    const Bound limit = bound(watch->limit);
    for (std::size_t i = 0; i < n; i += watched_block) {
        const std::size_t count = n - i < watched_block ? n - i : watched_block;
        if (__builtin_expect(any_reaches(g + i, count, s, limit), 0)) {
            watch->announce(watch->listener, i, count);
        }
        update_range<mode>(g, u, v, i, i + count, how, found, finite);
    }
    return finite;
}

bool update(Float type, const void* gradient, float* u, float* v, std::size_t n, Recurrence how,
            Candidates& found, const Watch* watch) {
    return with_type(type, gradient, [&](const auto* g) {
        switch (how.mode) {
            case Mode::feedback: return update_all<Mode::feedback>(g, v, v, n, how, found, watch);
            case Mode::momentum: return update_all<Mode::momentum>(g, u, v, n, how, found, watch);
            default: return update_all<Mode::nesterov>(g, u, v, n, how, found, watch);
        }
    });
}

// Whether update kept an element is told by repeating it: the old values it kept would overflow
// again.
template <Mode mode, class G>
inline void undo_group(const G* g, float* u, float* v, Recurrence how) {
    const Vector m = fill(how.momentum);
    const Vector d = mul(load(g), fill(how.scale));
    const Vector u1 = load(u);
    const Vector v1 = load(v);
    std::uint32_t kept = reaches(forward<mode>(d, u1, v1, m).v, finite_bound());
    Vector u0 = u1;
    Vector v0 = v1;
    if constexpr (mode == Mode::feedback) {
        v0 = div(sub(v1, d), m);
    } else if constexpr (mode == Mode::momentum) {
        v0 = sub(v1, u1);
        if (how.momentum != 0.0f) u0 = div(sub(u1, d), m);
    } else {
        v0 = sub(sub(v1, d), u1);
        if (how.momentum != 0.0f) u0 = sub(div(u1, m), d);
    }
    kept |= reaches(v0, finite_bound()) | reaches(u0, finite_bound());
    if (__builtin_expect(kept != 0, 0)) {
        v0 = restored(v0, v, kept);
        u0 = restored(u0, u, kept);
    }
    store(v, v0);
    if constexpr (mode != Mode::feedback) store(u, u0);
}

template <Mode mode, class G>
void undo_all(const G* g, float* u, float* v, std::size_t n, Recurrence how) {
    float nothing[W] = {};
    std::size_t i = 0;
    for (; i + W <= n; i += W) {
        undo_group<mode>(g + i, mode == Mode::feedback ? nothing : u + i, v + i, how);
    }
    if (i == n) return;
    on_tail(g + i, mode == Mode::feedback ? nullptr : u + i, v + i, n - i,
            [&](const G* a, float* b, float* c) { undo_group<mode>(a, b, c, how); });
}

void undo(Float type, const void* gradient, float* u, float* v, std::size_t n, Recurrence how) {
    with_type(type, gradient, [&](const auto* g) {
        switch (how.mode) {
            case Mode::feedback: return undo_all<Mode::feedback>(g, u, v, n, how);
            case Mode::momentum: return undo_all<Mode::momentum>(g, u, v, n, how);
            default: return undo_all<Mode::nesterov>(g, u, v, n, how);
        }
    });
}

template <int U, class T>
std::size_t scan_blocks(const T* x, std::size_t i, std::size_t n, Candidates& found, bool& finite,
                        std::size_t first = 0) {
    while (i + U * W <= n) {
        const std::size_t end = n - i < Notes<U>::block ? n : i + Notes<U>::block;
        const Bound least = bound(found.threshold);
        Notes<U> notes;
        for (; i + U * W <= end; i += U * W) {
            std::uint32_t any = 0;
            fetch_far(x + i, U * W);
#pragma GCC unroll 8
            for (int j = 0; j < U; ++j) any |= reaches(load(x + i + j * W), least);
            notes.add(i, any != 0);
        }
        finite &= collect(x, notes, found, first);
    }
    return i;
}

template <class T>
bool scan_all(const T* x, std::size_t n, Candidates& found) {
    bool finite = true;
    std::size_t i = scan_blocks<scan_unroll>(x, 0, n, found, finite);
    i = scan_blocks<1>(x, i, n, found, finite);
    if (i < n) {
        T last[W] = {};
        __builtin_memcpy(last, x + i, (n - i) * sizeof(T));
        scan_blocks<1>(last, 0, W, found, finite, i);
    }
    return finite;
}

bool scan(Float type, const void* x, std::size_t n, Candidates& found) {
    return with_type(type, x, [&](const auto* p) { return scan_all(p, n, found); });
}

std::size_t count(Float type, const void* x, std::size_t n, std::uint32_t threshold) {
    const Bound least = bound(threshold);
    return with_type(type, x, [&](const auto* p) {
        std::size_t found = 0;
        std::size_t i = 0;
        for (; i + 4 * W <= n; i += 4 * W) {
#pragma GCC unroll 8
            for (std::size_t j = 0; j < 4; ++j) {
                const std::uint32_t mask = reaches(load(p + i + j * W), least);
                found += static_cast<std::size_t>(__builtin_popcount(mask));
            }
        }
        for (; i < n; i += W) {
            const Vector v = load_some(p + i, n - i < W ? n - i : W);
            found += static_cast<std::size_t>(__builtin_popcount(reaches(v, least)));
        }
        return found;
    });
}

bool is_finite(Float type, const void* x, std::size_t n) {
    std::uint32_t unused[2 * W];
    Candidates nothing{unused, unused + W, 0, 0, infinity_bits, 0, nullptr};
    constexpr std::size_t block = 1 << 16;  // stop soon after the first
    return with_type(type, x, [&](const auto* p) {
        for (std::size_t i = 0; i < n; i += block) {
            if (!scan_all(p + i, n - i < block ? n - i : block, nothing)) return false;
        }
        return true;
    });
}

// Elements before the next address that whole vectors may be streamed to; n when there is none.
template <class T>
inline std::size_t head(const T* target, std::size_t n) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(target) % alignment;
    if (past % sizeof(T) != 0) return n;
    const std::size_t count = past == 0 ? 0 : (alignment - past) / sizeof(T);
    return count < n ? count : n;
}

// target[i] = source(i) for whole vectors, with plain stores outside the aligned middle.
template <class T, class Source>
inline void write(T* target, std::size_t n, bool around, Source source) {
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
        for (; i + W <= n; i += W) stream(target + i, source(i, W));
        fence();
    }
    for (; i + W <= n; i += W) store(target + i, source(i, W));
    partial(i, n);
}

// The bound that tells inf and NaN apart from all that `to` can hold, before rounding to it.
inline Bound overflow_bound(Float to) {
    return bound(to == Float::fp16 ? 0x477ff000u : to == Float::bf16 ? 0x7f7f8000u : infinity_bits);
}

bool cast(Float from, Float to, const void* source, void* target, std::size_t n, bool around) {
    const Bound limit = overflow_bound(to);
    Seen seen;
    with_type(from, source, [&](const auto* in) {
        with_type(to, target, [&](auto* out) {
            write(out, n, around, [&](std::size_t i, std::size_t count) {
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
        write(sum, n, false, [&](std::size_t i, std::size_t count) {
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
            write(out, n, around, [&](std::size_t i, std::size_t count) {
                return mul(load_some(sum + i, count), by);
            });
        } else {
            write(out, n, around, [&](std::size_t i, std::size_t count) {
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

}  // namespace

extern const Passes GRADWIRE_PASSES = {update,   undo,   scan,  count,   is_finite,  cast,
                                       add_into, divide, stream_update, stream_read};

}  // namespace gradwire
