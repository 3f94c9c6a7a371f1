// Passes that only read: which elements reach a threshold, how many, and whether all are finite.
// The update notes and collects candidates in the same way.
namespace gradwire {
namespace {

// The groups of a block that have a candidate, and which of their lanes. The main loop only notes
// them, without a branch that is hard to predict; they are read again while the block is in a cache.
template <int U, std::size_t size = watched_block>
struct Notes {
    static constexpr std::size_t groups = size / (U * W);
    static constexpr std::size_t block = groups * U * W;
    std::uint32_t at[groups + 1];
    std::uint64_t lanes[groups + 1];
    std::size_t count = 0;

    void add(std::size_t group_start, std::uint64_t wanted) {
        at[count] = static_cast<std::uint32_t>(group_start);
        lanes[count] = wanted;
        count += wanted != 0;
    }
};

// A mask of vector j of a group, at its place in the mask of the group.
inline std::uint64_t lanes_at(int j, std::uint32_t mask) { return std::uint64_t{mask} << (j * W); }

// Few lanes of a group are taken one by one: packing all its vectors takes longer.
constexpr int few_lanes = 4;

// Appends the candidates among the noted groups of x, whose first index is `first`. Returns
// whether those groups are finite.
template <int U, std::size_t size, class T>
inline bool collect(const T* x, const Notes<U, size>& notes, Candidates& found,
                    std::size_t first) {
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
        std::uint64_t lanes = notes.lanes[group];
        if (__builtin_expect(__builtin_popcountll(lanes) <= few_lanes, 1)) {
            for (; lanes != 0; lanes &= lanes - 1) {
                const std::size_t at =
                    notes.at[group] + static_cast<std::size_t>(__builtin_ctzll(lanes));
                const std::uint32_t bits = bits_of(widen(x[at]));
                found.bits[count] = bits;
                found.index[count] = static_cast<std::uint32_t>(first + at);
                const std::uint32_t absolute = bits & magnitude_mask;
                bad |= absolute >= infinity_bits;
                count += absolute >= found.threshold && absolute < infinity_bits;
            }
            continue;
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
constexpr std::size_t scanned_block = 4096;

// Scans groups of U vectors, S blocks side by side; returns where it stopped.
template <int U, int S, class T>
std::size_t scan_blocks(const T* x, std::size_t i, std::size_t n, Candidates& found, bool& finite,
                        std::size_t first = 0) {
    using Block = Notes<U, scanned_block>;
    while (i + S * U * W <= n) {
        const std::size_t share = (n - i) / (S * U * W) * (U * W);
        const std::size_t size = share < Block::block ? share : Block::block;
        const Bound least = bound(found.threshold);
        Block notes[S];
        for (const std::size_t end = i + size; i < end; i += U * W) {
#pragma GCC unroll 8
            for (int s = 0; s < S; ++s) {
                const std::size_t at = i + s * size;
                fetch_far(x + at, U * W);
                std::uint64_t lanes = 0;
#pragma GCC unroll 8
                for (int j = 0; j < U; ++j)
                    lanes |= lanes_at(j, reaches(load(x + at + j * W), least));
                notes[s].add(at, lanes);
            }
        }
        for (const Block& own : notes) finite &= collect(x, own, found, first);
        i += (S - 1) * size;
    }
    return i;
}

template <class T>
bool scan_all(const T* x, std::size_t n, Candidates& found) {
    bool finite = true;
    std::size_t i = scan_blocks<scan_unroll, has_short_window ? 2 : 1>(x, 0, n, found, finite);
    i = scan_blocks<1, 1>(x, i, n, found, finite);
    if (i < n) {
        T last[W] = {};
        __builtin_memcpy(last, x + i, (n - i) * sizeof(T));
        scan_blocks<1, 1>(last, 0, W, found, finite, i);
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
