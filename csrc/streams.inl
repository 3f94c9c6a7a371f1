// Sums of streams that stay sparse and of rows, written over a Vector. Included after entries.inl, with
// GRADWIRE_STREAMS set to the name of their table.

namespace gradwire {
namespace {

constexpr std::size_t mark_span = 16;     // elements to a mark
constexpr std::size_t wide_span = 65536;  // fp32 elements: 256 KiB of second-level cache
constexpr std::size_t kept_span = 512;
constexpr std::size_t many_of = 16;  // from one entry in so many elements on

// Sums on their way out: places and quotients are written in runs.
class Kept {
  public:
    Kept(Float type, float divisor, std::int32_t* place, void* value)
        : type_(type), divisor_(divisor), place_(place), value_(static_cast<char*>(value)) {}

    // W sums from place `base` on, without the zeros. At most kept_span elements between calls of
    // make_room.
    void take(const float* sum, std::uint32_t base) {
        const Vector v = load(sum);
        count_ += compress(v, nonzero(v), base, bits_ + count_, index_ + count_);
    }

    void make_room() {
        if (count_ > kept_span) write();
    }

    void write() {
        if (count_ == 0) return;
        const std::size_t size = type_ == Float::fp32 ? 4 : 2;
        __builtin_memcpy(place_ + written_, index_, count_ * sizeof *index_);
        __builtin_memcpy(sums_, bits_, count_ * sizeof *sums_);
        divide(type_, sums_, divisor_, value_ + written_ * size, count_, false);
        written_ += count_;
        count_ = 0;
    }

    std::size_t written() const { return written_; }

  private:
    Float type_;
    float divisor_;
    std::int32_t* place_;
    char* value_;
    std::size_t count_ = 0;
    std::size_t written_ = 0;
    alignas(64) std::uint32_t bits_[2 * kept_span + W];
    alignas(64) std::uint32_t index_[2 * kept_span + W];
    alignas(64) float sums_[2 * kept_span + W];
};

// The least place that is not yet in the sum; n if there is none.
std::size_t next_place(const SparsePayload* payloads, std::size_t count, std::size_t n) {
    for (std::size_t r = 0; r < count; ++r) {
        const SparsePayload& p = payloads[r];
        if (p.next == p.count) continue;
        const auto place = static_cast<std::size_t>(p.index[p.next]);
        n = place < n ? place : n;
    }
    return n;
}

// Adds what the payloads have from `first` to below `last`.
template <class Note>
void sum_tile(SparsePayload* payloads, std::size_t count, std::size_t first, std::size_t last,
              float* sum, Note note) {
    for (std::size_t r = 0; r < count; ++r) {
        with_type(payloads[r].type, payloads[r].value, [&](const auto* value) {
            scatter(payloads[r], value, first, last, sum, note);
        });
    }
}

// Many entries: every element is looked at.
void merge_many(SparsePayload* payloads, std::size_t count, std::size_t n, Kept& kept) {
    alignas(64) float sum[sum_span] = {};
    const Vector zero = fill(0);
    for (std::size_t at = next_place(payloads, count, n); at < n;
         at = next_place(payloads, count, n)) {
        const std::size_t first = at / sum_span * sum_span;
        const std::size_t last = n - first < sum_span ? n : first + sum_span;
        sum_tile(payloads, count, first, last, sum, [](std::size_t) {});
        for (std::size_t block = 0; block < last - first; block += kept_span) {
            for (std::size_t i = block; i < block + kept_span; i += W) {
                kept.take(sum + i, static_cast<std::uint32_t>(first + i));
                store(sum + i, zero);
            }
            kept.make_room();
        }
    }
}

// Memory of zeros, before and after each use.
struct Marked {
    alignas(64) float sum[wide_span];
    alignas(64) std::uint8_t marks[wide_span / mark_span];
};

// Few entries: where they are is marked, and only there it is looked.
void take_marked(Marked& tile, std::size_t first, std::size_t last, Kept& kept) {
    constexpr std::size_t at_once = 64;
    const Vector zero = fill(0);
    std::uint32_t where[at_once + W];
    for (std::size_t group = 0; group * mark_span < last - first; group += at_once) {
        std::uint64_t marked = 0;
        for (std::size_t i = 0; i < at_once; i += 8) {
            std::uint64_t eight;
            __builtin_memcpy(&eight, tile.marks + group + i, sizeof eight);
            marked |= (eight * 0x0102040810204080u >> 56) << i;
        }
        if (marked == 0) continue;
        __builtin_memset(tile.marks + group, 0, at_once);
        const std::size_t found = place_ones(marked, static_cast<std::uint32_t>(group), where);
        for (std::size_t j = 0; j < found; ++j) {
            const std::size_t begin = where[j] * mark_span;
            for (std::size_t i = begin; i < begin + mark_span; i += W) {
                kept.take(tile.sum + i, static_cast<std::uint32_t>(first + i));
                store(tile.sum + i, zero);
            }
            if (j % 32 == 31) kept.make_room();
        }
        kept.make_room();
    }
}

void merge_few(SparsePayload* payloads, std::size_t count, std::size_t n, Kept& kept) {
    thread_local Marked tile = {};
    for (std::size_t at = next_place(payloads, count, n); at < n;
         at = next_place(payloads, count, n)) {
        const std::size_t first = at / wide_span * wide_span;
        const std::size_t last = n - first < wide_span ? n : first + wide_span;
        sum_tile(payloads, count, first, last, tile.sum, [first](std::size_t place) {
            tile.marks[(place - first) / mark_span] = 1;
        });
        take_marked(tile, first, last, kept);
    }
}

std::size_t merge(SparsePayload* payloads, std::size_t count, std::size_t n, float divisor,
                  Float type, std::int32_t* place, void* value) {
    Kept kept(type, divisor, place, value);
    std::size_t total = 0;
    for (std::size_t r = 0; r < count; ++r) total += payloads[r].count;
    if (total > n / many_of) {
        merge_many(payloads, count, n, kept);
    } else {
        merge_few(payloads, count, n, kept);
    }
    kept.write();
    return kept.written();
}

// -- rows ----------------------------------------------------------------------------------------

template <class T>
inline void add_row(const T* row, std::size_t width, float* sum) {
    std::size_t i = 0;
    for (; i + W <= width; i += W) store(sum + i, add(load(sum + i), load(row + i)));
    for (; i < width; ++i) sum[i] += widen(row[i]);
}

void add_rows(Float type, const void* rows, const std::int32_t* position, std::size_t count,
              std::size_t width, float* sum) {
    constexpr std::size_t ahead = 8;
    with_type(type, rows, [&](const auto* row) {
        for (std::size_t j = 0; j < count; ++j, row += width) {
            if (j + ahead < count) {
                const float* const later = sum + static_cast<std::size_t>(position[j + ahead]) * width;
                for (std::size_t i = 0; i < width; i += 16) __builtin_prefetch(later + i, 1);
            }
            add_row(row, width, sum + static_cast<std::size_t>(position[j]) * width);
        }
    });
}

}  // namespace

extern const Streams GRADWIRE_STREAMS = {&GRADWIRE_PASSES, &GRADWIRE_SPARSE, merge, add_rows};

}  // namespace gradwire
