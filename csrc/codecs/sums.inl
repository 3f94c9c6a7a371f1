// Sinks, which begin and end a sum of payloads, and the sum of payloads that are plain numbers.
namespace gradwire {
namespace {

// Adds the sum to v.
struct InPlace {
    float* v;
    Vector open(std::size_t i) const { return load(v + i); }
    void close(std::size_t i, Vector sum) const { store(v + i, sum); }
    InPlace from(std::size_t i) const { return {v + i}; }
    float first(std::size_t i) const { return v[i]; }
    void last(std::size_t i, float sum) const { v[i] = sum; }
};

// Starts from zero, divides the sum, and writes it, around the cache if the target is aligned for
// that.
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

}  // namespace
}  // namespace gradwire
