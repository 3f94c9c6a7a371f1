// Equitable edge colourings of bipartite multigraphs; the face is gradwire/network/colouring.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../interrupt.hpp"

namespace gradwire {

// One flow from a vertex of the left side to one of the right.
struct Edge {
    std::int32_t left, right, id;
};

// The vertices of a side, each in a group: the leaves of one pod.
struct Side {
    std::int32_t vertices;
    const std::int32_t* group;  // of each vertex
    std::int32_t groups;
};

// Writes a colour for each edge, by id, from 0 to colours - 1: at every vertex of d edges each
// colour occurs floor(d / colours) or ceil(d / colours) times. If colours is a power of two, this
// also holds in every group. The same seed gives the same colours. Memory is proportional to the
// edges and, unless colours is a power of two, to its odd part at each vertex.
void colour_edges(std::vector<Edge> edges, Side left, Side right, std::int32_t colours,
                  std::uint64_t seed, std::int32_t* colour, Interrupt& interrupt);

// Splits edges in two, in place; each part gets half of every vertex's edges, rounded up or down.
class Halver {
  public:
    Halver(Side left, Side right, Interrupt& interrupt);
    // Moves one half of edges[0 .. n) to the front; returns its size.
    std::size_t halve(Edge* edges, std::size_t n);

  private:
    struct Open {  // the one edge of each vertex, and of each group, that has no mate yet
        Side side;
        std::vector<std::int32_t> of_vertex, of_group;
        explicit Open(Side side);
        template <class VertexOf>
        void pair_up(const Edge* edges, std::size_t n, VertexOf vertex_of,
                     std::vector<std::int32_t>& mate, Interrupt& interrupt);
    };

    void walk(std::size_t start, bool by_left, std::uint8_t half);

    Open left_, right_;
    std::vector<std::int32_t> left_mate_, right_mate_;
    std::vector<std::uint8_t> half_;
    std::vector<Edge> spare_;
    std::uint8_t next_half_ = 0;
    Interrupt& interrupt_;
};

// Moves one edge of each vertex to the front: a perfect matching of a bipartite graph in which all
// vertices have the same degree. Random walks (Goel, Kapralov and Khanna 2013): O(edges + n log n)
// expected, with n vertices on a side.
void perfect_matching_first(Edge* edges, std::int32_t n, std::int32_t degree,
                            std::uint64_t& dice, Interrupt& interrupt);

}  // namespace gradwire
