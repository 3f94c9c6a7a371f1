// Shared by all formats: random numbers, prefetching, the largest magnitude, sums in registers.
namespace gradwire {
namespace {

// Counter-based random bits: two rounds of a multiply-xorshift mixer with a key before each.
inline std::uint32_t random_bits(std::uint32_t element, Noise noise) {
    std::uint32_t h = element + noise.first_key;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = ((h ^ (h >> 15)) + noise.second_key) * 0x846ca68bu;
    return (h ^ (h >> 16)) + noise.shift;
}

inline float unit(std::uint32_t random) {  // in [0, 1), 24 bits
    return static_cast<float>(static_cast<std::int32_t>(random >> 8)) * 0x1p-24f;
}

// Returns the bits of the largest magnitude of a block, and prefetches, because it is the first to
// read the block.
inline std::uint32_t largest_of(const float* x, std::size_t n) {
    constexpr std::size_t U = 64 / W;
    Vector most[U];
    for (Vector& one : most) one = fill(0);
    std::size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        fetch_far(x + i, 64);
#pragma GCC unroll 8
        for (std::size_t j = 0; j < U; ++j) most[j] = larger(most[j], load(x + i + j * W));
    }
    for (; i < n; i += W) most[0] = larger(most[0], load_some(x + i, n - i < W ? n - i : W));
    for (std::size_t j = 1; j < U; ++j) most[0] = larger(most[0], most[j]);
    float lane[W];
    store(lane, most[0]);
    std::uint32_t out = 0;
    for (std::size_t j = 0; j < W; ++j) out = bits_of(lane[j]) > out ? bits_of(lane[j]) : out;
    return out;
}

constexpr std::size_t sum_lanes = 64;
constexpr std::size_t sum_block = 4096;

// Sums of `Terms` values per element over one block, element i in lane i mod 64.
template <int Terms>
struct LaneSums {
    Vector lane[Terms][sum_lanes / W];

    LaneSums() {
        for (auto& term : lane)
            for (auto& one : term) one = fill(0);
    }
    void add_to(int term, std::size_t i, Vector v) {
        Vector& sum = lane[term][i / W % (sum_lanes / W)];
        sum = gradwire::add(sum, v);
    }
    double total(int term) const {
        Vector sum[sum_lanes / W];
        for (std::size_t j = 0; j < sum_lanes / W; ++j) sum[j] = lane[term][j];
        for (std::size_t half = sum_lanes / W / 2; half > 0; half /= 2)
            for (std::size_t j = 0; j < half; ++j) sum[j] = gradwire::add(sum[j], sum[j + half]);
        float one[W];
        store(one, sum[0]);
        for (std::size_t half = W / 2; half > 0; half /= 2)
            for (std::size_t j = 0; j < half; ++j) one[j] += one[j + half];
        return one[0];
    }
};

// The sum of blocks' sums in fp64: neighbours in pairs, then pairs of these, as a parallel
// reduction would add them, with zeros to fill up to a power of two.
class TreeSum {
    double waiting_[64] = {};  // the sum of 2^level blocks, if that bit of their number is set
    std::uint64_t count_ = 0;

public:
    void add(double sum) {
        int level = 0;
        for (; count_ >> level & 1; ++level) sum = waiting_[level] + sum;
        waiting_[level] = sum;
        ++count_;
    }
    double total() const {
        double sum = 0.0;
        for (int level = 0; count_ >> level != 0; ++level)
            if (count_ >> level & 1) sum = waiting_[level] + sum;
        return sum;
    }
};

inline float capped(float scale, float most) { return scale < most ? scale : most; }

// The mean magnitude of a block; not finite if the block is not, and only then. Fractions of the
// magnitudes are added, so that no sum overflows; a mean that is rounded up could.
inline float mean_of(const float* x, std::size_t m) {
    LaneSums<1> sums;
    const Vector part = fill(0x1p-9f);
    std::size_t i = 0;
    for (; i + sum_lanes <= m; i += sum_lanes) {
        fetch_far(x + i, sum_lanes);
#pragma GCC unroll 8
        for (std::size_t j = 0; j < sum_lanes; j += W)
            sums.add_to(0, j, mul(larger(fill(0), load(x + i + j)), part));
    }
    for (; i < m; i += W) {
        const Vector magnitudes = larger(fill(0), load_some(x + i, m - i < W ? m - i : W));
        sums.add_to(0, i, mul(magnitudes, part));
    }
    const auto total = static_cast<float>(sums.total(0));
    if (!(total < float_of(infinity_bits))) return total;
    return capped(total * (512.0f / static_cast<float>(m)), float_of(infinity_bits - 1));
}

// A block whose largest magnitude is below this counts as zero, so that no scale or inverse
// overflows or underflows.
constexpr float least_scaled = 0x1p-96f;

// The largest scale for which scale times steps is finite: a quotient that is rounded up would make
// the product overflow.
constexpr float most_scale(float steps) {
    const float scale = 0x1.fffffep127f / steps;
    return double{scale} * double{steps} < 0x1.ffffffp127 ? scale : scale * (1.0f - 0x1p-23f);
}

// A format consists of:
//
// block: elements packed together, which mostly share a scale; bytes(m): the bytes of m elements.
// steps: the scale is the block's largest magnitude over steps; 0: the format has no scale.
// mean: the scale is the mean magnitude instead; `encode` gets it, and no level is beyond steps.
// one: how a step is written when `encode` is given 1 / scale; a power of two.
// encode: encodes one block of m elements. value: decodes element i of a block of m. add: adds a
// whole block of all payloads, in order, with the vectors of the sum in registers.

struct Block {
    const std::uint8_t* codes;
    float scale;
};

// Hardware prefetches a few streams on its own, but not as many as there are ranks.
inline void fetch_ahead(const std::uint8_t* codes) { __builtin_prefetch(codes + 1024); }

// Adds terms to sink.open(i), i in elements of the block, and ends with sink.close(i, sum).
template <int U, class Sink, class Term>
inline void add_terms(std::size_t payloads, std::size_t m, Sink sink, Term term) {
    for (std::size_t i = 0; i < m; i += U * W) {
        Vector sum[U];
#pragma GCC unroll 8
        for (int j = 0; j < U; ++j) sum[j] = sink.open(i + j * W);
        for (std::size_t r = 0; r < payloads; ++r) {
            const auto of = term(r, i);
#pragma GCC unroll 8
            for (int j = 0; j < U; ++j) sum[j] = add(sum[j], of(i + j * W));
        }
#pragma GCC unroll 8
        for (int j = 0; j < U; ++j) sink.close(i + j * W, sum[j]);
    }
}

// Copies around the cache, except for the parts of cache lines at both ends.
inline void copy_around(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % 64;
    std::size_t i = past == 0 ? 0 : 64 - past;
    i = i < bytes ? i : bytes;
    __builtin_memcpy(to, from, i);
    for (; i + 64 <= bytes; i += 64) stream_line(to + i, from + i);
    __builtin_memcpy(to + i, from + i, bytes - i);
}

inline constexpr std::size_t bit_bytes(std::size_t n) { return (n + 7) / 8; }

// Returns W bits; i is a multiple of W.
inline std::uint32_t bits_at(const std::uint8_t* bits, std::size_t i) {
    if constexpr (W == 8) return bits[i / 8];
    std::uint16_t mask;
    __builtin_memcpy(&mask, bits + i / 8, 2);
    return mask;
}

inline void put_bits(std::uint8_t* bits, std::size_t i, std::uint32_t mask, std::size_t count) {
    bits[i / 8] = static_cast<std::uint8_t>(mask);
    if (W > 8 && count > 8) bits[i / 8 + 1] = static_cast<std::uint8_t>(mask >> 8);
}

inline bool bit(const std::uint8_t* bits, std::size_t i) { return (bits[i / 8] >> i % 8 & 1) != 0; }

}  // namespace
}  // namespace gradwire
