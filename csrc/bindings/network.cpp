// Which path flows take.
#include "../network/colour.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

using SideAt = std::tuple<std::int32_t, Address, std::int32_t>;

Side side_at(const SideAt& side) {
    const auto& [vertices, group, groups] = side;
    return {vertices, at<std::int32_t>(group), groups};
}

void colour_edges_at(std::size_t n, Address left, Address right, const SideAt& left_side,
                     const SideAt& right_side, std::int32_t colours, std::uint64_t seed,
                     Address colour) {
    const nb::gil_scoped_release release;
    std::vector<Edge> edges(n);
    for (std::size_t i = 0; i < n; ++i)
        edges[i] = {at<std::int32_t>(left)[i], at<std::int32_t>(right)[i],
                    static_cast<std::int32_t>(i)};
    colour_edges(std::move(edges), side_at(left_side), side_at(right_side), colours, seed,
                 at<std::int32_t>(colour));
}

}  // namespace

void bind_network(nb::module_& m) { m.def("colour_edges", &colour_edges_at); }

}  // namespace gradwire
