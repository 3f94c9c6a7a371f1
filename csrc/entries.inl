// Sparse payloads, written over a Vector: their sum, and decoding most of their places. Included
// after passes.inl and codecs.inl, with GRADWIRE_SPARSE set to the name of their table.

namespace gradwire {
namespace {

// -- the sum -------------------------------------------------------------------------------------

constexpr std::size_t sum_span = 4096;      // fp32 elements: 16 KiB of first-level cache
constexpr std::size_t added_at_once = 8;    // entries; not more than W
constexpr std::size_t many_in_tile = 64;    // entries of a payload: fewer are faster one by one
constexpr std::size_t entries_ahead = 256;  // hardware does not prefetch many slow streams

// Returns up to W values as fp32, as widen() does; `left` values are readable.
inline const float* widened(const float* value, std::size_t, float*) { return value; }
template <class T>
inline const float* widened(const T* value, std::size_t left, float* held) {
    store(held, load_some(value, left < W ? left : W));
    return held;
}

// Sums of the elements from `first` to below `last`. From sum[spare] on there are `spare_sums`
// more, whose content is undefined.
struct Tile {
    std::size_t first, last;
    float* sum;
    std::size_t spare;
};

// Adds eight entries, of which the first ones belong to this tile. The others are added to the
// spare sums, each at its own place, because a branch at the tile's end would be unpredictable.
// Returns how many belong to this tile.
inline std::size_t add_ragged(Tile tile, const std::uint32_t* index, const float* term) {
    const auto first = static_cast<std::uint32_t>(tile.first);
    const auto size = static_cast<std::uint32_t>(tile.last - tile.first);
    std::uint32_t place[added_at_once];
    std::uint32_t inside = 0;
    for (std::uint32_t i = 0; i < added_at_once; ++i) {  // compilers vectorise it
        const std::uint32_t at = index[i] - first;
        place[i] = at < size ? at : static_cast<std::uint32_t>(tile.spare) + i;
        inside += at < size ? 1u : 0u;
    }
    add_four(tile.sum, place, term);
    add_four(tile.sum, place + 4, term + 4);
    return inside;
}

// Adds the payload's entries of a tile. Calls note(index) for each, and pause() after every eight.
template <class T, class Note, class Pause>
inline void scatter(SparsePayload& payload, const T* value, Tile tile, Note note, Pause pause) {
    constexpr std::size_t step = added_at_once;
    const auto* const index = reinterpret_cast<const std::uint32_t*>(payload.index);
    const std::size_t count = payload.count;
    float* const sum = tile.sum - tile.first;  // where element 0 would be
    float held[W];
    std::size_t j = payload.next;
    const auto note_all = [&](std::size_t until) {
        for (std::size_t i = j; i < until; ++i) note(static_cast<std::size_t>(index[i]));
    };
    for (; j + step <= count && index[j + step - 1] < tile.last; j += step) {
        __builtin_prefetch(index + j + entries_ahead);
        __builtin_prefetch(value + j + entries_ahead);
        const float* const terms = widened(value + j, count - j, held);
        add_four(sum, index + j, terms);
        add_four(sum, index + j + 4, terms + 4);
        note_all(j + step);
        pause();
    }
    if (j - payload.next >= many_in_tile && j + step <= count) {
        const float* const terms = widened(value + j, count - j, held);
        const std::size_t inside = add_ragged(tile, index + j, terms);
        note_all(j + inside);
        j += inside;
    } else if (j < count) {
        const float* const terms = widened(value + j, count - j, held);
        std::size_t i = j;
        for (; i < count && index[i] < tile.last; ++i) sum[index[i]] += terms[i - j];
        note_all(i);
        j = i;
    }
    payload.next = j;
}

// Writes the sums of one tile while those of the next are added up, so that neither memory nor
// arithmetic waits for the other. Clears each line as it is written.
template <class Sink>
class Behind {
  public:
    explicit Behind(Sink sink) : sink_(sink) {}

    void take(float* sum, std::size_t size, Sink sink) {
        finish();
        sum_ = sum;
        size_ = size;
        at_ = 0;
        sink_ = sink;
    }

    void some() {
        constexpr std::size_t part = 32;  // elements: two lines for eight entries
        if (at_ + part <= size_) close(at_ + part);
    }

    void finish() {
        close(size_ - size_ % W);
        for (; at_ < size_; ++at_) sink_.last(at_, sum_[at_]);  // only in the last tile
        size_ = at_ = 0;
    }

  private:
    void close(std::size_t end) {
        const Sink sink = sink_;
        float* const sum = sum_;
        const Vector zero = fill(0);
        for (std::size_t i = at_; i < end; i += W) {
            sink.close(i, load(sum + i));
            store(sum + i, zero);
        }
        at_ = end;
    }

    Sink sink_;
    float* sum_ = nullptr;
    std::size_t size_ = 0, at_ = 0;
};

// Whether there are enough entries to add that writing can overlap with adding.
inline bool many_entries(const SparsePayload* payloads, std::size_t count, std::size_t n) {
    constexpr std::size_t elements_each = 8;
    std::size_t total = 0;
    for (std::size_t r = 0; r < count; ++r) total += payloads[r].count;
    return total > n / elements_each;
}

// Sums the elements from `begin` to `end`; sink element 0 is element `begin`.
template <class Sink>
void sum_range(SparsePayload* payloads, std::size_t count, std::size_t begin, std::size_t end,
               Sink sink) {
    alignas(64) float sums[2][sum_span + spare_sums] = {};
    Behind<Sink> behind(sink);
    const bool later = many_entries(payloads, count, end - begin);
    std::size_t which = 0;
    for (std::size_t first = begin; first < end; first += sum_span) {
        const std::size_t last = end - first < sum_span ? end : first + sum_span;
        float* const sum = sums[which];
        for (std::size_t r = 0; r < count; ++r) {
            with_type(payloads[r].type, payloads[r].value, [&](const auto* value) {
                scatter(
                    payloads[r], value, {first, last, sum, sum_span}, [](std::size_t) {},
                    [&] { behind.some(); });
            });
        }
        behind.take(sum, last - first, sink.from(first - begin));
        if (later) {
            which = 1 - which;
        } else {
            behind.finish();
        }
    }
    behind.finish();
}

void accumulate_sparse(Float type, void* target, std::size_t n, SparsePayload* payloads,
                       std::size_t count, float divisor, bool around) {
    with_type(type, target, [&](auto* out) {
        const std::size_t past = around ? head(out, n) : 0;
        const std::size_t begin = past == n ? 0 : past;  // one range if it cannot be aligned
        const auto sum_to = [&](std::size_t from, std::size_t to) {
            with_quotient(type, out + from, divisor, around, [&](auto sink) {
                sum_range(payloads, count, from, to, sink);
            });
        };
        if (begin > 0) sum_to(0, begin);
        sum_to(begin, n);
    });
}

// -- places --------------------------------------------------------------------------------------

constexpr std::size_t words_at_once = 8;
constexpr std::size_t places_at_once = 64 * words_at_once + W;  // W: written past the end

inline std::uint64_t word_at(const std::uint8_t* bits, std::size_t word) {
    std::uint64_t out;
    __builtin_memcpy(&out, bits + 8 * word, sizeof out);
    return out;
}

// Turns the positions of ones in the upper bits into indices, W at a time.
struct Join {
    const std::uint8_t* section;
    std::size_t bytes;
    unsigned width;
    Spread how = spread_of(width);
    Places before = count_from(0u - static_cast<std::uint32_t>(W));  // the last lane: -1
    std::uint32_t bad = 0;

    // `which`: the lanes that hold an entry.
    void join(std::uint32_t* place, std::size_t first, std::uint32_t which) {
        const std::size_t at = first * width / 8;  // a whole byte: W is a multiple of 8
        std::uint8_t last[64] = {};
        const std::uint8_t* low = section + at;
        if (__builtin_expect(bytes - at < sizeof last, 0)) {
            __builtin_memcpy(last, low, bytes - at);
            low = last;
        }
        const Places number = count_from(static_cast<std::uint32_t>(first));
        const Places now = joined(load(place + first), number, low, how);
        store(place + first, now);
        bad |= falls(before, now) & which;
        before = now;
    }
};

Progress elias_fano(EliasFano code, std::int32_t* index) {
    const Progress nothing{0, 0};
    auto* const place = reinterpret_cast<std::uint32_t*>(index);
    Join join{code.section, code.bytes, code.width};
    std::size_t word = 0, found = 0, joined = 0;
    while (word + words_at_once <= code.upper_bytes / 8 && code.k - found >= places_at_once) {
        const std::size_t before = found;  // loading what was just stored in parts is slow
        for (const std::size_t end = word + words_at_once; word < end; ++word) {
            const auto base = static_cast<std::uint32_t>(64 * word);
            found += place_ones(word_at(code.upper, word), base, place + found);
        }
        for (; joined + W <= before; joined += W) join.join(place, joined, ~0u);
    }
    for (; joined + W <= found; joined += W) join.join(place, joined, ~0u);
    if (joined < found) join.join(place, joined, (1u << (found - joined)) - 1);
    // Each zero so far adds one to the upper part of an index; with no more zeros than this nothing
    // overflows.
    if (found == 0 || 64 * word - found > (code.n >> code.width) + 8) return nothing;
    return join.bad != 0 || place[found - 1] >= code.n ? nothing : Progress{word, found};
}

Progress ones(const std::uint8_t* bits, std::size_t words, std::size_t k, std::int32_t* index) {
    auto* const place = reinterpret_cast<std::uint32_t*>(index);
    std::size_t word = 0, found = 0;
    for (; word < words && k - found >= 64 + W; ++word) {
        const auto base = static_cast<std::uint32_t>(64 * word);
        found += place_ones(word_at(bits, word), base, place + found);
    }
    return {word, found};
}

std::size_t between(const std::uint32_t* bits, const std::uint32_t* index, std::size_t count,
                    std::uint32_t least, std::uint32_t bound_bits, std::uint32_t* bits_out,
                    std::uint32_t* index_out) {
    const Bound low = bound(least);
    const Bound high = bound(bound_bits);
    std::size_t found = 0;
    const auto take = [&](const std::uint32_t* b, const std::uint32_t* i, std::uint32_t lanes) {
        float value[W];
        __builtin_memcpy(value, b, sizeof value);
        const Places values = load(b);
        const Places places = load(i);
        const std::uint32_t mask = reaches(load(value), low) & ~reaches(load(value), high) & lanes;
        keep(values, mask, bits_out + found);
        found += keep(places, mask, index_out + found);
    };
    std::size_t j = 0;
    for (; j + W <= count; j += W) take(bits + j, index + j, ~0u);
    if (j == count) return found;
    std::uint32_t last[2][W] = {};
    __builtin_memcpy(last[0], bits + j, (count - j) * sizeof last[0][0]);
    __builtin_memcpy(last[1], index + j, (count - j) * sizeof last[0][0]);
    take(last[0], last[1], (1u << (count - j)) - 1);
    return found;
}

}  // namespace

extern const Sparse GRADWIRE_SPARSE = {accumulate_sparse, elias_fano, ones, between};

}  // namespace gradwire
