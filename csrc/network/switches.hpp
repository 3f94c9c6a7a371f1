// How switches choose among their ways up, packet by packet: the shortest queue, or round robin in
// a new random order each round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "paths.hpp"

namespace gradwire {

class Switches {
  public:
    Switches(std::size_t count, std::uint64_t seed) : all_(count), seed_(seed) {}

    // Returns the index of a random one of the ways with the shortest queue; ways must not be
    // empty.
    template <class Wait>
    std::size_t shortest(std::size_t which, const std::vector<std::int32_t>& ways, Wait wait) {
        std::int64_t least = wait(ways[0]);
        best_.assign(1, 0);
        for (std::size_t i = 1; i < ways.size(); ++i) {
            const std::int64_t own = wait(ways[i]);
            if (own < least) least = own, best_.clear();
            if (own == least) best_.push_back(i);
        }
        return best_[at_random(which, best_.size())];
    }

    // Returns the index of the way whose turn it is; when none of `ways` is left in the round, a
    // new round begins.
    std::size_t in_turn(std::size_t which, const std::vector<std::int32_t>& ways,
                        std::size_t of_all) {
        std::vector<std::int32_t>& round = all_[which].round;
        for (;;) {
            for (std::size_t i = 0; i < round.size(); ++i)
                for (std::size_t way = 0; way < ways.size(); ++way)
                    if (ways[way] == round[i]) {
                        round.erase(round.begin() + static_cast<std::ptrdiff_t>(i));
                        return way;
                    }
            round.resize(of_all);
            std::iota(round.begin(), round.end(), 0);
            for (std::size_t i = of_all; i > 1; --i)
                std::swap(round[i - 1], round[at_random(which, i)]);
        }
    }

  private:
    struct State {
        std::uint64_t drawn = 0;
        std::vector<std::int32_t> round;  // ways that have not had their turn
    };

    // Uses other random numbers than connections do.
    std::size_t at_random(std::size_t which, std::size_t count) {
        const Dice dice(~seed_ - which);
        return static_cast<std::size_t>(
            pick(dice(all_[which].drawn++), static_cast<std::int64_t>(count)));
    }

    std::vector<State> all_;
    std::vector<std::size_t> best_;
    std::uint64_t seed_;
};

}  // namespace gradwire
