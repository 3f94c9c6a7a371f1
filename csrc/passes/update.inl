// Advances momentum and residual by a gradient, and the inverse.
namespace gradwire {
namespace {

// Gives the lanes of the mask their old values back. This is rare, so it goes through memory.
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

// Advances U vectors. A non-finite u always makes v non-finite, so only v is checked. Returns the
// lanes in which the new v reaches the bound; clears finite if an element had to be kept.
template <Mode mode, int U, class G>
inline std::uint64_t update_group(const G* g, float* u, float* v, Vector m, Vector s, Bound least,
                                  bool& finite) {
    constexpr bool has_u = mode != Mode::feedback;
    Pair next[U];
    std::uint64_t lanes = 0;
    std::uint32_t bad = 0;
#pragma GCC unroll 8
    for (int j = 0; j < U; ++j) {
        const Vector d = mul(load(g + j * W), s);
        const Vector old = has_u ? load(u + j * W) : d;
        next[j] = forward<mode>(d, old, load(v + j * W), m);
        lanes |= lanes_at(j, reaches(next[j].v, least));
        bad |= reaches(next[j].v, finite_bound());
    }
    if (__builtin_expect(bad != 0, 0)) {
        finite = false;
#pragma GCC unroll 8
        for (int j = 0; j < U; ++j) {
            const std::uint32_t kept = reaches(next[j].v, finite_bound());
            next[j].v = restored(next[j].v, v + j * W, kept);
            if constexpr (has_u) next[j].u = restored(next[j].u, u + j * W, kept);
            lanes |= lanes_at(j, reaches(next[j].v, least));
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < U; ++j) {
        if constexpr (has_u) store(u + j * W, next[j].u);
        store(v + j * W, next[j].v);
    }
    return lanes;
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

// Advances groups of U vectors from element i on, block after block; returns where it stopped.
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

// Advances the elements from i to the last; i is 0 or a multiple of the block.
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

// Lanes in which v may consist of a huge gradient d: where |v| is half of |d| or more.
inline std::uint32_t made_by_huge(Vector d, Vector v) {
    const Vector zero = fill(0);
    const Vector large = choose(signs(d), sub(zero, d), d), now = choose(signs(v), sub(zero, v), v);
    return reaches(d, bound(huge_bits)) & ~reaches(d, finite_bound()) &
           ~signs(sub(now, mul(large, fill(0.5f))));
}

// Repeating the update shows whether it kept an element: the old values would overflow again.
// Values that a huge gradient made of small ones would overflow too, but are inverted.
template <Mode mode, class G>
inline void undo_group(const G* g, float* u, float* v, Recurrence how) {
    const Vector m = fill(how.momentum);
    const Vector d = mul(load(g), fill(how.scale));
    const Vector u1 = load(u);
    const Vector v1 = load(v);
    std::uint32_t kept = reaches(forward<mode>(d, u1, v1, m).v, finite_bound());
    if (__builtin_expect(kept != 0, 0)) kept &= ~made_by_huge(d, v1);
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

}  // namespace
}  // namespace gradwire
