// The network: paths of flows, their rates and ends, packets, and failures.
#include "../network/colour.hpp"
#include "../network/failures.hpp"
#include "../network/hashed.hpp"
#include "../network/least_loaded.hpp"
#include "../network/maxmin.hpp"
#include "../network/packets.hpp"
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
    Interrupt signals = python_signals();
    colour_edges(std::move(edges), side_at(left_side), side_at(right_side), colours, seed,
                 at<std::int32_t>(colour), signals);
}

using TiersAt =
    std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, Address, Address>;
using PiecesAt = std::tuple<std::size_t, Address, Address, Address>;

Tiers tiers_at(const TiersAt& tiers) {
    const auto& [leaves, uplinks, cores, pods, pod_of, rates] = tiers;
    return {leaves, uplinks, cores, pods, at<std::int64_t>(pod_of), at<std::int64_t>(rates)};
}

void least_loaded_at(const PiecesAt& given, const TiersAt& tiers, bool local, std::uint64_t seed,
                     Address load, Address path) {
    const nb::gil_scoped_release release;
    const auto& [n, source, target, amount] = given;
    const Pieces pieces{n, at<std::int64_t>(source), at<std::int64_t>(target),
                        at<std::int64_t>(amount)};
    const auto choose = local ? least_loaded_locally : least_loaded;
    Interrupt signals = python_signals();
    choose(pieces, tiers_at(tiers), seed, at<double>(load), at<std::int64_t>(path), signals);
}

using PortsAt =
    std::tuple<std::int64_t, std::int64_t, Address, Address, Address, Address, Address>;

Ports ports_of(const PortsAt& given) {
    const auto& [count, hosts, source, target, plane_of, rates, before] = given;
    return {count, hosts, at<std::int64_t>(source), at<std::int64_t>(target),
            at<std::int64_t>(plane_of), at<std::int64_t>(rates), at<double>(before)};
}

void slowest_links_at(const PiecesAt& given, std::int64_t parts, const TiersAt& tiers,
                      const PortsAt& ports, Address counts, Address pair, Address paths, std::int64_t most,
                      std::uint64_t seed, std::size_t samples, Address longest) {
    const nb::gil_scoped_release release;
    const auto& [n, source, target, amount] = given;
    const HashedFlows flows{n, at<std::int64_t>(source), at<std::int64_t>(target),
                            at<std::int64_t>(amount), parts, at<std::int64_t>(counts),
                            at<std::int64_t>(pair), at<std::int64_t>(paths), most};
    Interrupt signals = python_signals();
    slowest_links(flows, tiers_at(tiers), ports_of(ports), seed, samples, at<double>(longest), signals);
}

using ListsAt = std::tuple<Address, Address>;
using FlowsAt = std::tuple<std::size_t, ListsAt, Address, Address, Address, ListsAt, Address>;

Lists lists_at(const ListsAt& lists) {
    return {at<std::int64_t>(std::get<0>(lists)), at<std::int64_t>(std::get<1>(lists))};
}

FlowSet flow_set_at(const FlowsAt& flows, std::size_t links, Address rate) {
    const auto& [n, uses, part, bytes, many, next, delay] = flows;
    return {n, links, lists_at(uses), at<double>(part), at<double>(bytes), at<double>(many),
            lists_at(next), at<double>(delay), at<double>(rate)};
}

using ChangeAt = std::tuple<double, ListsAt, Address, Address>;

std::size_t share_links_at(const FlowsAt& flows, std::size_t links, Address rate,
                           double tolerance, const std::vector<ChangeAt>& changes, Address begin,
                           Address end) {
    const nb::gil_scoped_release release;
    const FlowSet set = flow_set_at(flows, links, rate);
    std::vector<Change> later;
    for (const auto& [since, uses, part, now] : changes)
        later.push_back({since, lists_at(uses), at<double>(part), at<double>(now)});
    Interrupt signals = python_signals();
    return MaxMin(set, tolerance, signals, std::move(later))
        .run(at<double>(begin), at<double>(end));
}

void fair_rates_at(const FlowsAt& flows, std::size_t links, Address rate, Address found) {
    const nb::gil_scoped_release release;
    const FlowSet set = flow_set_at(flows, links, rate);
    Interrupt signals = python_signals();
    MaxMin(set, 0.0, signals).rates(at<double>(found));
}

using PathsAt = std::tuple<std::int64_t, Address, Address, Address, Address, std::int64_t>;
using ConnectionsAt = std::tuple<std::size_t, Address, Address, Address, Address, Address,
                                 Address, Address, std::vector<PathsAt>>;
using HostsAt = std::tuple<std::int64_t, std::int64_t, Address, Address, Address, Address>;
using TransportAt = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                               std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                               std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool,
                               bool, bool, bool, std::uint64_t>;
using LimitsAt = std::tuple<std::int64_t, std::int64_t>;

Connections connections_at(const ConnectionsAt& connections) {
    const auto& [n, source, target, bytes, choice, start, step, job, paths] = connections;
    Connections all{n, at<std::int64_t>(source), at<std::int64_t>(target),
                    at<std::int64_t>(bytes), at<std::int64_t>(choice), at<std::int64_t>(start),
                    at<std::int64_t>(step), at<std::int64_t>(job), {}};
    for (const auto& [since, path, counts, pair, table, most] : paths)
        all.paths.push_back({since, at<std::int64_t>(path), at<std::int64_t>(counts),
                             at<std::int64_t>(pair), at<std::int64_t>(table), most});
    return all;
}

std::array<std::int64_t, 5> send_packets_at(
    const ConnectionsAt& connections, const TiersAt& tiers, const HostsAt& hosts,
    const TransportAt& transport, const LimitsAt& limits, Address end, Address longest) {
    const nb::gil_scoped_release release;
    const Connections all = connections_at(connections);
    const auto& [count, ports, leaf_of, plane_of, rates, fails] = hosts;
    const Hosts ends{count, ports, at<std::int64_t>(leaf_of), at<std::int64_t>(plane_of),
                     at<std::int64_t>(rates), at<std::int64_t>(fails)};
    const auto& [packet, header, window, latency, timeout, queue, mark, ack, acked, band,
                 entropies, exclude, repath, slow_down, trim, selective, seed] = transport;
    const Transport same{packet, header, window, latency, timeout, queue, mark, ack,
                         acked, band, entropies, exclude, repath, slow_down, trim, selective,
                         seed};
    const Tiers fabric = tiers_at(tiers);
    const Limits bounds{std::get<0>(limits), std::get<1>(limits)};
    Interrupt signals = python_signals();
    const Totals totals = Packets(all, fabric, ends, same, bounds, signals)
                              .run(at<std::int64_t>(end), at<std::int64_t>(longest));
    return {totals.events, totals.dropped, totals.marked, totals.trimmed,
            static_cast<std::int64_t>(totals.stopped)};
}

void sweep_failures_at(const PiecesAt& given, Address path, const TiersAt& tiers,
                       const PortsAt& ports, const std::tuple<std::size_t, Address, Address>& sets,
                       std::uint64_t seed, Address slowest, Address moved) {
    const nb::gil_scoped_release release;
    const auto& [n, source, target, amount] = given;
    const Pieces pieces{n, at<std::int64_t>(source), at<std::int64_t>(target),
                        at<std::int64_t>(amount)};
    const auto& [count, start, links] = sets;
    Interrupt signals = python_signals();
    sweep_failures(pieces, at<std::int64_t>(path), tiers_at(tiers), ports_of(ports),
                   {count, at<std::int64_t>(start), at<std::int64_t>(links)}, seed,
                   at<double>(slowest), at<std::int64_t>(moved), signals);
}

}  // namespace

void bind_network(nb::module_& m) {
    m.def("colour_edges", &colour_edges_at);
    m.def("least_loaded", &least_loaded_at);
    m.def("sweep_failures", &sweep_failures_at);
    m.def("slowest_links", &slowest_links_at);
    m.def("share_links", &share_links_at);
    m.def("fair_rates", &fair_rates_at);
    m.def("send_packets", &send_packets_at);
}

}  // namespace gradwire
