// With an even number of colours, the edges are halved, each half with half of the colours. With an
// odd number, vertices are cut into chunks of as many edges as there are colours, filled up with
// dummy edges; then every colour is a perfect matching, and removing one matching leaves an even
// number.
//
//   12 colours ── 6 ── 3 ── chunks of 3: a matching, and 2 ── 1
//
// A full chunk has each colour once, and a vertex has at most one chunk that is not full.
#include "colour.hpp"

#include <algorithm>

namespace gradwire {

namespace {

constexpr std::int32_t nobody = -1;  // the id of a dummy edge

// Renames one end of the edges, from vertices to chunks of `size` edges; returns how full each
// chunk is.
template <class End>
std::vector<std::int32_t> cut_into_chunks(std::vector<Edge>& edges, std::int32_t vertices,
                                          std::int32_t size, End end) {
    std::vector<std::int32_t> chunk_of(static_cast<std::size_t>(vertices), nobody), full;
    for (Edge& edge : edges) {
        std::int32_t& chunk = chunk_of[static_cast<std::size_t>(edge.*end)];
        if (chunk == nobody || full[static_cast<std::size_t>(chunk)] == size) {
            chunk = static_cast<std::int32_t>(full.size());
            full.push_back(0);
        }
        ++full[static_cast<std::size_t>(chunk)];
        edge.*end = chunk;
    }
    return full;
}

// Colours a regular graph: all vertices have `degree` edges.
class Regular {
  public:
    Regular(std::int32_t vertices, std::uint64_t& dice, std::int32_t* colour,
            Interrupt& interrupt)
        : vertices_(vertices), group_(static_cast<std::size_t>(vertices), 0),
          halver_({vertices, group_.data(), 1}, {vertices, group_.data(), 1}, interrupt),
          dice_(dice), colour_(colour), interrupt_(interrupt) {}

    void colour(Edge* edges, std::int32_t degree, std::int32_t first) {
        const auto a_class = static_cast<std::size_t>(vertices_);
        if (degree % 2 == 1) {
            if (degree > 1) perfect_matching_first(edges, vertices_, degree, dice_, interrupt_);
            for (std::size_t i = 0; i < a_class; ++i)
                if (edges[i].id != nobody) colour_[edges[i].id] = first;
            edges += a_class, --degree, ++first;
        }
        if (degree == 0) return;
        const std::size_t half = halver_.halve(edges, a_class * static_cast<std::size_t>(degree));
        colour(edges, degree / 2, first);
        colour(edges + half, degree / 2, first + degree / 2);
    }

  private:
    std::int32_t vertices_;
    std::vector<std::int32_t> group_;
    Halver halver_;
    std::uint64_t& dice_;
    std::int32_t* colour_;
    Interrupt& interrupt_;
};

void colour_oddly(const Edge* begin, std::size_t n, Side left, Side right, std::int32_t colours,
                  std::int32_t first, std::uint64_t& dice, std::int32_t* colour,
                  Interrupt& interrupt) {
    std::vector<Edge> edges(begin, begin + n);
    auto full_left = cut_into_chunks(edges, left.vertices, colours, &Edge::left);
    auto full_right = cut_into_chunks(edges, right.vertices, colours, &Edge::right);
    const std::size_t vertices = std::max(full_left.size(), full_right.size());
    full_left.resize(vertices, 0);
    full_right.resize(vertices, 0);
    for (std::size_t l = 0, r = 0;;) {
        while (l < vertices && full_left[l] == colours) ++l;
        while (r < vertices && full_right[r] == colours) ++r;
        if (l == vertices) break;
        interrupt();
        ++full_left[l], ++full_right[r];
        edges.push_back({static_cast<std::int32_t>(l), static_cast<std::int32_t>(r), nobody});
    }
    Regular(static_cast<std::int32_t>(vertices), dice, colour, interrupt)
        .colour(edges.data(), colours, first);
}

}  // namespace

void colour_edges(std::vector<Edge> edges, Side left, Side right, std::int32_t colours,
                  std::uint64_t seed, std::int32_t* colour, Interrupt& interrupt) {
    std::uint64_t dice = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    if (dice == 0) dice = 1;
    Halver halver(left, right, interrupt);
    const auto split = [&](auto self, Edge* from, std::size_t n, std::int32_t some,
                           std::int32_t first) -> void {
        if (n == 0) return;
        if (some == 1) {
            for (std::size_t i = 0; i < n; ++i) colour[from[i].id] = first;
        } else if (some % 2 == 1) {
            colour_oddly(from, n, left, right, some, first, dice, colour, interrupt);
        } else {
            const std::size_t half = halver.halve(from, n);
            self(self, from, half, some / 2, first);
            self(self, from + half, n - half, some / 2, first + some / 2);
        }
    };
    split(split, edges.data(), edges.size(), colours, 0);
}

}  // namespace gradwire
