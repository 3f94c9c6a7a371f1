// A walk begins at a left vertex without an edge of the matching: along any other edge to the
// right, along the matching's edge back, until the right vertex has none. The edges that were
// chosen last at each vertex form a path without loops.
#include "colour.hpp"

#include <algorithm>
#include <utility>

namespace gradwire {

namespace {

constexpr std::int32_t none = -1;

std::uint32_t below(std::uint32_t limit, std::uint64_t& dice) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return static_cast<std::uint32_t>(((dice >> 32) * limit) >> 32);
}

}  // namespace

void perfect_matching_first(Edge* edges, std::int32_t n, std::int32_t degree,
                            std::uint64_t& dice, Interrupt& interrupt) {
    const auto size = static_cast<std::size_t>(n), width = static_cast<std::size_t>(degree);
    std::vector<std::int32_t> of_left(size * width);  // positions of its edges, vertex by vertex
    std::vector<std::int32_t> count(size, 0);
    for (std::size_t i = 0; i < size * width; ++i) {
        interrupt();
        const auto left = static_cast<std::size_t>(edges[i].left);
        of_left[left * width + static_cast<std::size_t>(count[left]++)] =
            static_cast<std::int32_t>(i);
    }
    std::vector<std::int32_t> chosen(size, none);   // of each left vertex, by the last walk
    std::vector<std::int32_t> matched(size, none);  // of each right vertex, the edge
    std::vector<std::int32_t> matched_left(size, none);
    const auto left_of = [&](std::int32_t edge) {
        return static_cast<std::size_t>(edges[static_cast<std::size_t>(edge)].left);
    };
    const auto right_of = [&](std::int32_t edge) {
        return static_cast<std::size_t>(edges[static_cast<std::size_t>(edge)].right);
    };
    for (std::size_t start = 0; start < size; ++start) {
        for (std::size_t at = start;;) {
            interrupt();
            do {
                chosen[at] = of_left[at * width + below(static_cast<std::uint32_t>(degree), dice)];
            } while (chosen[at] == matched_left[at]);
            const std::int32_t other = matched[right_of(chosen[at])];
            if (other == none) break;
            at = left_of(other);
        }
        for (std::size_t at = start;;) {
            const std::int32_t edge = chosen[at];
            const std::int32_t other = std::exchange(matched[right_of(edge)], edge);
            matched_left[at] = edge;
            if (other == none) break;
            at = left_of(other);
        }
    }
    std::vector<Edge> rest;
    rest.reserve(size * width - size);
    std::vector<Edge> matching(size);
    for (std::size_t i = 0; i < size * width; ++i) {
        interrupt();
        const auto left = static_cast<std::size_t>(edges[i].left);
        if (matched_left[left] == static_cast<std::int32_t>(i))
            matching[left] = edges[i];
        else
            rest.push_back(edges[i]);
    }
    std::copy(matching.begin(), matching.end(), edges);
    std::copy(rest.begin(), rest.end(), edges + n);
}

}  // namespace gradwire
