// Order statistics of magnitudes, for selection.cpp.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels.hpp"

namespace gradwire {

constexpr std::size_t most_bins = 4096;
constexpr std::size_t fewest_bins = 256;
constexpr std::size_t sample_size = 8192;  // of many candidates: ranks are within 2 percent

// A buffer that grows, never shrinks, and is not initialised: fresh pages cost more than the
// selection.
struct Buffer {
    std::unique_ptr<std::uint32_t[]> data;
    std::size_t size = 0;
    std::uint32_t* at_least(std::size_t wanted) {
        if (wanted > size) {
            data.reset();
            size = 0;
            data.reset(new std::uint32_t[wanted]);
            size = wanted;
        }
        return data.get();
    }
};

struct Scratch {
    Buffer bits, index, work, band;
    std::uint32_t sample[sample_size];
    std::uint32_t histogram[most_bins];
};

inline std::uint32_t magnitude(std::uint32_t bits) { return bits & magnitude_mask; }

struct Range {
    std::uint32_t low, high;
};

inline Range range_of(const std::uint32_t* bits, std::size_t count) {
    std::int32_t low = magnitude_mask;
    std::int32_t high = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto m = static_cast<std::int32_t>(magnitude(bits[i]));
        low = std::min(low, m);
        high = std::max(high, m);
    }
    return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(high)};
}

// Order statistics of magnitudes: one histogram over their range, then only the bin that holds the
// rank. A few magnitudes get few bins: walking through 4096 takes longer than the rest for them.
class Ranks {
  public:
    Ranks(const std::uint32_t* bits, std::size_t count, Scratch& own)
        : bits_(bits), count_(count), own_(own) {
        range_ = range_of(bits, count);
        while (bins_ < most_bins && bins_ < 4 * count) bins_ *= 2;
        while (((range_.high - range_.low) >> shift_) >= bins_) ++shift_;
        std::uint32_t* const histogram = own.histogram;
        std::fill_n(histogram, bins_, 0u);
        for (std::size_t i = 0; i < count; ++i) ++histogram[bin(bits[i])];
    }

    // The magnitude bits of the rank-th largest, rank in 1 ... count.
    std::uint32_t largest(std::size_t rank) const {
        const std::uint32_t where = bin_of(rank);
        if (shift_ == 0) return range_.low + where;
        std::uint32_t* const work = own_.work.at_least(count_ + 1);
        std::size_t held = 0;
        for (std::size_t i = 0; i < count_; ++i) {
            work[held] = magnitude(bits_[i]);
            held += bin(bits_[i]) == where;
        }
        std::nth_element(work, work + (held - rank), work + held);
        return work[held - rank];
    }

    // Slightly below the rank-th largest: the lower edge of its bin.
    std::uint32_t about_largest(std::size_t rank) const {
        return range_.low + (bin_of(rank) << shift_);
    }

    std::uint32_t smallest() const { return range_.low; }

  private:
    std::uint32_t bin(std::uint32_t bits) const {
        return (magnitude(bits) - range_.low) >> shift_;
    }

    // The bin of the rank-th largest; makes rank its rank within that bin.
    std::uint32_t bin_of(std::size_t& rank) const {
        const std::uint32_t* const histogram = own_.histogram;
        auto where = static_cast<std::uint32_t>(bins_) - 1;
        for (; histogram[where] < rank; --where) rank -= histogram[where];
        return where;
    }

    const std::uint32_t* bits_;
    std::size_t count_;
    Scratch& own_;
    Range range_;
    std::size_t bins_ = fewest_bins;
    int shift_ = 0;
};

}  // namespace gradwire
