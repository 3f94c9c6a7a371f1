// Records what an update would lose to rounding, so that undoing it loses nothing.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "kernels.hpp"

namespace gradwire {

// The old u and v of the blocks that one update announced. The first of them allocates memory for
// all that may follow, at most 2n floats; the system commits only what is written.
class Journal {
  public:
    // Call this before an update of n elements; u is null if there is no velocity.
    void begin(const float* u, const float* v, std::size_t n) {
        clear();
        u_ = u;
        v_ = v;
        n_ = n;
    }

    Watch watch(std::uint32_t limit) {
        return {limit, this, [](void* self, std::size_t begin, std::size_t count) {
                    static_cast<Journal*>(self)->keep(begin, count);
                }};
    }

    // Whether memory ran out; then nothing is held.
    bool failed() const { return failed_; }

    std::size_t elements() const { return count_; }

    // Whether put_back fits n elements, with or without a velocity.
    bool fits(std::size_t n, bool with_velocity) const {
        return count_ == 0 || (n == n_ && with_velocity == (u_ != nullptr));
    }

    void put_back(float* u, float* v) const {
        std::size_t at = 0;
        for (const auto& [begin, count] : runs_) {
            std::copy_n(old_v_.get() + at, count, v + begin);
            if (u_ != nullptr) std::copy_n(old_u_.get() + at, count, u + begin);
            at += count;
        }
    }

    void clear() { *this = Journal(); }

  private:
    void keep(std::size_t begin, std::size_t count) noexcept {
        if (failed_) return;
        try {
            if (old_v_ == nullptr) {
                old_v_.reset(new float[n_ - begin]);
                if (u_ != nullptr) old_u_.reset(new float[n_ - begin]);
            }
            if (!runs_.empty() && runs_.back().first + runs_.back().second == begin) {
                runs_.back().second += count;
            } else {
                runs_.emplace_back(begin, count);
            }
        } catch (const std::bad_alloc&) {
            clear();
            failed_ = true;
            return;
        }
        std::copy_n(v_ + begin, count, old_v_.get() + count_);
        if (u_ != nullptr) std::copy_n(u_ + begin, count, old_u_.get() + count_);
        count_ += count;
    }

    const float* u_ = nullptr;
    const float* v_ = nullptr;
    std::size_t n_ = 0;
    std::size_t count_ = 0;
    bool failed_ = false;
    std::vector<std::pair<std::size_t, std::size_t>> runs_;  // begin and count, ascending
    std::unique_ptr<float[]> old_u_, old_v_;
};

}  // namespace gradwire
