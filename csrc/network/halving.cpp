// Halves by pairs.
//
//   left vertex     a───a   b───b   b ─ ─ c      ───  mates at their vertex: one in each half
//   edges           1   2   3   4   5     6      ─ ─  edges left over at vertices of a group
//   right vertex    x───────x   y───────────y
//
// An edge has at most one mate at each side, so mates form paths and cycles. Sides alternate along
// them, so cycles are even, and every other edge is in the same half.
#include "colour.hpp"

#include <algorithm>

namespace gradwire {

namespace {

constexpr std::int32_t none = -1;
constexpr std::uint8_t unknown = 2;

}  // namespace

Halver::Open::Open(Side side)
    : side(side),
      of_vertex(static_cast<std::size_t>(side.vertices), none),
      of_group(static_cast<std::size_t>(side.groups), none) {}

template <class VertexOf>
void Halver::Open::pair_up(const Edge* edges, std::size_t n, VertexOf vertex_of,
                           std::vector<std::int32_t>& mate, Interrupt& interrupt) {
    const auto meet = [&mate](std::int32_t& open, std::int32_t edge) {
        if (open == none) {
            open = edge;
        } else {
            mate[static_cast<std::size_t>(open)] = edge;
            mate[static_cast<std::size_t>(edge)] = open;
            open = none;
        }
    };
    std::fill_n(mate.begin(), n, none);
    for (std::size_t i = 0; i < n; ++i) {
        interrupt();
        meet(of_vertex[static_cast<std::size_t>(vertex_of(edges[i]))],
             static_cast<std::int32_t>(i));
    }
    for (std::size_t i = 0; i < n; ++i) {
        interrupt();
        const auto vertex = static_cast<std::size_t>(vertex_of(edges[i]));
        if (of_vertex[vertex] != static_cast<std::int32_t>(i)) continue;
        of_vertex[vertex] = none;
        meet(of_group[static_cast<std::size_t>(side.group[vertex])],
             static_cast<std::int32_t>(i));
    }
    for (std::size_t i = 0; i < n; ++i)
        of_group[static_cast<std::size_t>(
            side.group[static_cast<std::size_t>(vertex_of(edges[i]))])] = none;
}

Halver::Halver(Side left, Side right, Interrupt& interrupt)
    : left_(left), right_(right), interrupt_(interrupt) {}

// Follows mates from an edge on, first at its left or right vertex, and alternates the halves.
void Halver::walk(std::size_t start, bool by_left, std::uint8_t half) {
    for (auto edge = static_cast<std::int32_t>(start);
         edge != none && half_[static_cast<std::size_t>(edge)] == unknown;
         half ^= 1, by_left = !by_left) {
        interrupt_();
        const auto at = static_cast<std::size_t>(edge);
        half_[at] = half;
        edge = by_left ? left_mate_[at] : right_mate_[at];
    }
}

std::size_t Halver::halve(Edge* edges, std::size_t n) {
    if (left_mate_.size() < n) {
        left_mate_.resize(n);
        right_mate_.resize(n);
        half_.resize(n);
        spare_.resize(n);
    }
    left_.pair_up(edges, n, [](const Edge& e) { return e.left; }, left_mate_, interrupt_);
    right_.pair_up(edges, n, [](const Edge& e) { return e.right; }, right_mate_, interrupt_);
    std::fill_n(half_.begin(), n, unknown);
    // Paths are walked from an end. If a path has an odd number of edges, the larger half goes to
    // the two halves in turn.
    for (std::size_t i = 0; i < n; ++i) {
        if (half_[i] != unknown) continue;
        const bool has_left = left_mate_[i] != none, has_right = right_mate_[i] != none;
        if (has_left && has_right) continue;
        walk(i, has_left, next_half_);
        next_half_ ^= 1;
    }
    for (std::size_t i = 0; i < n; ++i)
        if (half_[i] == unknown) walk(i, true, 0);
    std::size_t first = 0, second = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (half_[i] == 0)
            edges[first++] = edges[i];
        else
            spare_[second++] = edges[i];
    }
    std::copy_n(spare_.begin(), second, edges + first);
    return first;
}

}  // namespace gradwire
