// A way out of long loops. The core knows nothing of Python: whoever calls it says what to ask, and
// what is asked throws where the work is to end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace gradwire {

class Interrupt {
  public:
    // Asked ten times a second at most; it throws to end the work, which frees all that it holds.
    explicit Interrupt(std::function<void()> ask) : ask_(std::move(ask)) {}

    // For every turn of a loop, as cheap as counting. work: about how many nanoseconds the turn
    // takes; a turn of more than a tenth of a second has loops of its own to ask in.
    void operator()(std::int64_t work = 10) {
        if ((left_ -= work) <= 0) look();
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::int64_t between_looks = 100'000;  // of work: a clock costs 30 ns
    static constexpr std::chrono::milliseconds between_asks{100};

    void look() {
        left_ = between_looks;
        const auto now = Clock::now();
        if (now < next_) return;
        next_ = now + between_asks;
        ask_();
    }

    std::function<void()> ask_;
    std::int64_t left_ = between_looks;
    Clock::time_point next_ = Clock::now() + between_asks;
};

}  // namespace gradwire
