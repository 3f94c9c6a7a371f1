// Sums of streams that stay sparse and of rows, written over a Vector. Included after entries.inl,
// with GRADWIRE_STREAMS set to the name of their table.

namespace gradwire {
namespace {

constexpr std::size_t kept_span = 512;
constexpr std::size_t many_of = 32;  // many entries: more than one in so many elements

// Output of sums: places and quotients are written in runs, around the cache if there are many.
class Kept {
  public:
    Kept(Float type, float divisor, std::int32_t* place, void* value, bool around)
        : type_(type),
          divisor_(divisor),
          place_(place),
          value_(static_cast<char*>(value)),
          around_(around && is_aligned(place) && is_aligned(value)) {}

    // Takes the nonzero sums from vectors and clears these: the i-th is at offset_of(i), which is
    // place first + offset_of(i). At most kept_span elements.
    template <class Offset>
    void take(float* sum, std::size_t vectors, std::size_t first, Offset offset_of) {
        const Vector zero = fill(0);
        std::size_t count = count_;
        for (std::size_t i = 0; i < vectors; ++i) {
            const std::size_t at = offset_of(i);
            const Vector v = load(sum + at);
            count += compress(v, nonzero(v), static_cast<std::uint32_t>(first + at), bits_ + count,
                              index_ + count);
            store(sum + at, zero);
        }
        count_ = count;
        if (count <= kept_span) return;
        const std::size_t whole = around_ ? count / lines * lines : count;
        write(whole);
        count_ = count - whole;
        __builtin_memcpy(bits_, bits_ + whole, lines * sizeof *bits_);
        __builtin_memcpy(index_, index_ + whole, lines * sizeof *index_);
    }

    // Writes what is left, and returns how many were written in all.
    std::size_t finish() {
        around_ = false;
        write(count_);
        return written_;
    }

  private:
    static constexpr std::size_t lines = 32;  // entries that fill whole lines, also of 16-bit values
    static constexpr std::size_t room = 2 * kept_span + lines + W;

    static bool is_aligned(const void* data) {
        return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
    }

    void write(std::size_t count) {
        if (count == 0) return;
        std::int32_t* const to = place_ + written_;
        if (around_) {
            for (std::size_t i = 0; i < count; i += 16)
                stream_line(reinterpret_cast<std::uint8_t*>(to + i),
                            reinterpret_cast<const std::uint8_t*>(index_ + i));
        } else {
            __builtin_memcpy(to, index_, count * sizeof *to);
        }
        __builtin_memcpy(sums_, bits_, count * sizeof *sums_);
        const std::size_t size = type_ == Float::fp32 ? 4 : 2;
        divide(type_, sums_, divisor_, value_ + written_ * size, count, around_);
        written_ += count;
    }

    Float type_;
    float divisor_;
    std::int32_t* place_;
    char* value_;
    bool around_;
    std::size_t count_ = 0;
    std::size_t written_ = 0;
    alignas(64) std::uint32_t bits_[room];
    alignas(64) std::uint32_t index_[room];
    alignas(64) float sums_[room];
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

// Adds the payloads' entries of a tile.
template <class Note>
void sum_tile(SparsePayload* payloads, std::size_t count, Tile tile, Note note) {
    for (std::size_t r = 0; r < count; ++r) {
        with_type(payloads[r].type, payloads[r].value, [&](const auto* value) {
            scatter(payloads[r], value, tile, note, [] {});
        });
    }
}

// For many entries: reads every element.
void merge_many(SparsePayload* payloads, std::size_t count, std::size_t n, Kept& kept) {
    alignas(64) float sum[sum_span + spare_sums] = {};
    for (std::size_t at = next_place(payloads, count, n); at < n;
         at = next_place(payloads, count, n)) {
        const std::size_t first = at / sum_span * sum_span;
        const std::size_t last = n - first < sum_span ? n : first + sum_span;
        sum_tile(payloads, count, {first, last, sum, sum_span}, [](std::size_t) {});
        for (std::size_t block = 0; block < last - first; block += kept_span) {
            kept.take(sum + block, kept_span / W, first + block,
                      [](std::size_t i) { return i * W; });
        }
    }
}

// For few entries: takes only from where marks are set, and clears these.
void take_marked(Marked& tile, std::size_t first, std::size_t last, Kept& kept) {
    constexpr std::size_t at_once = 64;
    constexpr std::size_t parts = mark_span / W;
    constexpr std::size_t groups = kept_span / mark_span;
    std::size_t found = 0;
    for (std::size_t group = 0; group * mark_span < last - first; group += at_once) {
        found += place_ones(marked(tile.marks + group), static_cast<std::uint32_t>(group),
                            tile.where + found);
    }
    for (std::size_t j = 0; j < found; j += groups) {
        const std::size_t here = found - j < groups ? found - j : groups;
        kept.take(tile.sum, here * parts, first, [where = tile.where + j](std::size_t i) {
            return where[i / parts] * mark_span + i % parts * W;
        });
    }
    for (std::size_t j = 0; j < found; ++j) tile.marks[tile.where[j]] = 0;
}

void merge_few(SparsePayload* payloads, std::size_t count, std::size_t n, Kept& kept,
               Marked& tile) {
    for (std::size_t at = next_place(payloads, count, n); at < n;
         at = next_place(payloads, count, n)) {
        const std::size_t first = at / wide_span * wide_span;
        const std::size_t last = n - first < wide_span ? n : first + wide_span;
        const auto mark = [&tile, first](std::size_t place) {
            tile.marks[(place - first) / mark_span] = 1;
        };
        sum_tile(payloads, count, {first, last, tile.sum, wide_span}, mark);
        take_marked(tile, first, last, kept);
    }
}

std::size_t merge(SparsePayload* payloads, std::size_t count, std::size_t n, float divisor,
                  Float type, std::int32_t* place, void* value, Marked& tile) {
    constexpr std::size_t around_from = 1 << 20;  // entries
    std::size_t total = 0;
    for (std::size_t r = 0; r < count; ++r) total += payloads[r].count;
    Kept kept(type, divisor, place, value, total >= around_from);
    if (total > n / many_of) {
        merge_many(payloads, count, n, kept);
    } else {
        merge_few(payloads, count, n, kept, tile);
    }
    return kept.finish();
}

// -- owners --------------------------------------------------------------------------------------

constexpr std::size_t dealt_at_once = 512;
constexpr unsigned chunk_bits = 31 - chunk_shift;

// The rounds of a deal, divided by multiplication: exact for chunks below 2^27 (Granlund &
// Montgomery 1994).
class Rounds {
  public:
    explicit Rounds(Deal deal) : deal_(deal) {
        while (1u << (shift_ - chunk_bits) < deal.owners) ++shift_;
        factor_ = static_cast<std::uint32_t>(((1ull << shift_) + deal.owners - 1) / deal.owners);
    }
    std::uint32_t of(std::uint32_t chunk) const {
        return static_cast<std::uint32_t>(std::uint64_t{chunk} * factor_ >> shift_);
    }
    // The owner of the first chunk of a round.
    std::uint32_t first(std::uint32_t round) const {
        return drawn(round, deal_.seed, deal_.owners);
    }

  private:
    Deal deal_;
    std::uint32_t factor_;
    unsigned shift_ = chunk_bits;
};

// The owners of entries, and their places among the owner's elements.
struct Dealt {
    alignas(64) std::uint32_t owner[dealt_at_once];
    alignas(64) std::uint32_t place[dealt_at_once];

    void deal(const std::int32_t* from, std::size_t count, std::uint32_t owners, Rounds rounds) {
        for (std::size_t j = 0; j < count; ++j) {
            const std::uint32_t p = static_cast<std::uint32_t>(from[j]) & 0x7fffffffu;
            const std::uint32_t chunk = p >> chunk_shift, round = rounds.of(chunk);
            const std::uint32_t turn = chunk - round * owners + rounds.first(round);
            owner[j] = turn < owners ? turn : turn - owners;
            place[j] = round << chunk_shift | (p & 15u);
        }
    }
};

// Calls act(dealt, first, count) for all entries, in batches.
template <class Act>
void each_dealt(const std::int32_t* place, std::size_t count, Deal deal, Act act) {
    const Rounds rounds(deal);
    Dealt dealt;
    for (std::size_t j = 0; j < count; j += dealt_at_once) {
        const std::size_t here = count - j < dealt_at_once ? count - j : dealt_at_once;
        dealt.deal(place + j, here, deal.owners, rounds);
        act(dealt, j, here);
    }
}

std::vector<std::size_t> split(Stream whole, Deal deal, std::int32_t* place, void* value) {
    constexpr std::size_t lanes = 4;  // so that increments for the same owner do not wait
    const std::size_t owners = deal.owners;
    std::vector<std::uint32_t> counts(lanes * owners);
    each_dealt(whole.place, whole.count, deal, [&](const Dealt& dealt, std::size_t, std::size_t n) {
        for (std::size_t j = 0; j < n; ++j) ++counts[j % lanes * owners + dealt.owner[j]];
    });
    std::vector<std::size_t> totals(owners);
    std::vector<std::uint32_t> next(owners);
    std::uint32_t before = 0;
    for (std::size_t i = 0; i < owners; ++i) {
        for (std::size_t lane = 0; lane < lanes; ++lane) totals[i] += counts[lane * owners + i];
        next[i] = before;
        before += static_cast<std::uint32_t>(totals[i]);
    }
    const auto scatter = [&](const auto* from, auto* to) {
        each_dealt(whole.place, whole.count, deal,
                   [&](const Dealt& dealt, std::size_t first, std::size_t n) {
            for (std::size_t j = 0; j < n; ++j) {
                const std::uint32_t at = next[dealt.owner[j]]++;
                place[at] = static_cast<std::int32_t>(dealt.place[j]);
                to[at] = from[first + j];
            }
        });
    };
    if (whole.type == Float::fp32) {
        scatter(static_cast<const std::uint32_t*>(whole.value), static_cast<std::uint32_t*>(value));
    } else {
        scatter(static_cast<const std::uint16_t*>(whole.value), static_cast<std::uint16_t*>(value));
    }
    return totals;
}

void flat_places(const std::int32_t* place, std::size_t count, std::uint32_t owner, Deal deal,
                 std::int32_t* out) {
    const Rounds rounds(deal);
    const std::uint32_t owners = deal.owners;
    for (std::size_t j = 0; j < count; ++j) {
        const auto p = static_cast<std::uint32_t>(place[j]);
        const std::uint32_t round = p >> chunk_shift, first = rounds.first(round);
        const std::uint32_t turn = owner < first ? owner + owners - first : owner - first;
        out[j] = static_cast<std::int32_t>((round * owners + turn) << chunk_shift | (p & 15u));
    }
}

// -- rows ----------------------------------------------------------------------------------------

// Sums and divides one run of rows, U vectors at a time from column i on. Returns the next column.
template <int U, class T, class Sink>
inline std::size_t sum_columns(const T* const* row, std::size_t count, std::size_t i,
                               std::size_t width, Sink sink) {
    const std::size_t size = (width - i) / (U * W) * (U * W);
    add_terms<U>(count, size, sink.from(i), [&](std::size_t r, std::size_t) {
        return [from = row[r] + i](std::size_t j) { return load(from + j); };
    });
    return i + size;
}

void sum_runs(Float type, Runs runs, std::size_t width, float divisor, Float out_type, void* out) {
    constexpr std::size_t ahead = 16;  // rows to prefetch: they lie anywhere
    with_type(type, out, [&](auto* kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        const auto* const rows = reinterpret_cast<const T* const*>(runs.row);
        const std::size_t total = runs.count == 0 ? 0 : runs.end[runs.count - 1];
        with_quotient(out_type, out, divisor, false, [&](auto sink) {
            std::size_t begin = 0;
            for (std::size_t u = 0; u < runs.count; ++u) {
                const std::size_t end = runs.end[u];
                for (std::size_t r = begin + ahead; r < end + ahead && r < total; ++r) {
                    for (std::size_t i = 0; i < width; i += 64 / sizeof(T))
                        __builtin_prefetch(rows[r] + i);
                }
                const auto here = sink.from(u * width);
                const T* const* const row = rows + begin;
                std::size_t i = sum_columns<4>(row, end - begin, 0, width, here);
                i = sum_columns<1>(row, end - begin, i, width, here);
                for (; i < width; ++i) {
                    float sum = here.first(i);
                    for (std::size_t r = begin; r < end; ++r) sum += widen(rows[r][i]);
                    here.last(i, sum);
                }
                begin = end;
            }
        });
    });
}

}  // namespace

extern const Streams GRADWIRE_STREAMS = {&GRADWIRE_PASSES, &GRADWIRE_SPARSE, merge, split,
                                          flat_places, sum_runs};

}  // namespace gradwire
