// Passes that only read: which elements reach a threshold, how many, and whether all are finite.
// The update notes and collects candidates in the same way.
namespace gradwire {
namespace {

// The groups of a block that have a candidate. The main loop only notes them, without a branch that
// is hard to predict; they are read again while the block is in the first-level cache.
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

constexpr int scan_unroll = 4;

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
    constexpr std::size_t block = 1 << 16;  // stops soon after the first non-finite element
    return with_type(type, x, [&](const auto* p) {
        for (std::size_t i = 0; i < n; i += block) {
            if (!scan_all(p + i, n - i < block ? n - i : block, nothing)) return false;
        }
        return true;
    });
}

}  // namespace
}  // namespace gradwire
