// Ends long loops early. The core knows nothing of Python: the caller passes a function to call now
// and then, and that function throws to end the work.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace gradwire {

class Interrupt {
  public:
    // ask is called ten times a second at most; it throws to end the work, which frees all that it
    // holds.
    explicit Interrupt(std::function<void()> ask) : ask_(std::move(ask)) {}

    // To be called in every iteration of a loop; as cheap as counting. work: about how many
    // nanoseconds the iteration takes; one of more than a tenth of a second has inner loops that
    // call this too.
    void operator()(std::int64_t work = 10) {
        if ((left_ -= work) <= 0) look();
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::int64_t between_looks = 100'000;  // ns of work: a clock costs 30 ns
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
