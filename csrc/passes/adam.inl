// Advances Adam's moments and a residual by a gradient, and the inverse.
namespace gradwire {
namespace {

struct Moments {
    Vector m;  // of the gradient
    Vector q;  // of its square
};

// The constants of a step, as vectors; each operation is rounded on its own.
struct AdamNumbers {
    Vector scale, beta1, rest1, beta2, rest2, root, eps, factor;

    explicit AdamNumbers(const AdamStep& how)
        : scale(fill(how.scale)), beta1(fill(how.beta1)), rest1(fill(how.rest1)),
          beta2(fill(how.beta2)), rest2(fill(how.rest2)), root(fill(how.root)),
          eps(fill(how.eps)), factor(fill(how.factor)) {}

    Moments moments(Vector d, Vector m, Vector q) const {
        return {add(mul(m, beta1), mul(d, rest1)), add(mul(q, beta2), mul(mul(d, d), rest2))};
    }
    Vector move(Moments now) const {
        return mul(div(now.m, add(mul(square_root(now.q), root), eps)), factor);
    }
};

// An element keeps its moments and its residual if one of them would become non-finite.
template <class G>
inline bool adam_group(const G* g, float* m, float* q, float* v, const AdamNumbers& by) {
    const Moments now = by.moments(mul(load(g), by.scale), load(m), load(q));
    const Vector waits = add(load(v), by.move(now));
    const std::uint32_t bad = reaches(waits, finite_bound()) | reaches(now.q, finite_bound()) |
                              reaches(now.m, finite_bound());
    if (__builtin_expect(bad != 0, 0)) {
        store(v, restored(waits, v, bad));
        store(m, restored(now.m, m, bad));
        store(q, restored(now.q, q, bad));
        return false;
    }
    store(v, waits);
    store(m, now.m);
    store(q, now.q);
    return true;
}

// Restores what was there before this step, computed from the moments after it. Rounding does not
// make squares negative. Repeating the step shows which elements it had kept; they are kept here
// too.
template <class G>
inline bool undo_adam_group(const G* g, float* m, float* q, float* v, const AdamNumbers& by) {
    const Vector d = mul(load(g), by.scale), zero = fill(0);
    const Moments now{load(m), load(q)}, again = by.moments(d, now.m, now.q);
    const Vector waited = sub(load(v), by.move(now));
    Vector m0 = div(sub(now.m, mul(d, by.rest1)), by.beta1);
    Vector q0 = div(sub(now.q, mul(mul(d, d), by.rest2)), by.beta2);
    m0 = choose(reaches(m0, finite_bound()), zero, m0);  // a moment of this gradient alone
    q0 = choose(reaches(q0, finite_bound()) | signs(q0), zero, q0);
    const std::uint32_t kept = reaches(again.m, finite_bound()) |
                               reaches(again.q, finite_bound()) | reaches(waited, finite_bound());
    store(v, kept != 0 ? restored(waited, v, kept) : waited);
    store(m, kept != 0 ? restored(m0, m, kept) : m0);
    store(q, kept != 0 ? restored(q0, q, kept) : q0);
    return true;
}

template <class G, class Group>
inline bool by_adam_groups(const G* g, float* m, float* q, float* v, std::size_t n, Group group) {
    bool finite = true;
    std::size_t i = 0;
    for (; i + W <= n; i += W) finite &= group(g + i, m + i, q + i, v + i);
    if (i == n) return finite;
    G gradient[W] = {};
    float last[3][W] = {};
    float* const state[3] = {m + i, q + i, v + i};
    __builtin_memcpy(gradient, g + i, (n - i) * sizeof(G));
    for (int s = 0; s < 3; ++s) __builtin_memcpy(last[s], state[s], (n - i) * sizeof(float));
    finite &= group(gradient, last[0], last[1], last[2]);
    for (int s = 0; s < 3; ++s) __builtin_memcpy(state[s], last[s], (n - i) * sizeof(float));
    return finite;
}

bool adam(Float type, const void* gradient, float* m, float* q, float* v, std::size_t n,
          const AdamStep& how) {
    const AdamNumbers by(how);
    return with_type(type, gradient, [&](const auto* in) {
        return by_adam_groups(in, m, q, v, n, [&](const auto* g, float* a, float* b, float* c) {
            return adam_group(g, a, b, c, by);
        });
    });
}

void undo_adam(Float type, const void* gradient, float* m, float* q, float* v, std::size_t n,
               const AdamStep& how) {
    const AdamNumbers by(how);
    with_type(type, gradient, [&](const auto* in) {
        by_adam_groups(in, m, q, v, n, [&](const auto* g, float* a, float* b, float* c) {
            return undo_adam_group(g, a, b, c, by);
        });
    });
}

}  // namespace
}  // namespace gradwire
