"""Topologies and traffic of htsim: `.topo` and `.cm` files.

    Nodes 1024                      Nodes 16
    Tiers 3                         Connections 2
    Podsize 64                      7->5 id 1 start 0 size 2000000
    Tier 0                          15->1 id 2 start 0 size 2000000
    Downlink_speed_Gbps 100
    Radix_Down 8
    Radix_Up 8

Source: csg-htsim, sim/datacenter (fat_tree_topology, connection_matrix).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn

from gradwire.errors import NetworkError
from gradwire.network.builders import fat_tree, leaf_spine
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows

_SPEED = "downlink_speed_gbps"
_KEYS = ("nodes", "tiers", "podsize", "tier", _SPEED, "radix_down", "radix_up",
         "downlink_latency_ns", "switch_latency_ns", "oversubscribed", "bundle", "queue_down",
         "queue_up")  # fmt: skip
_LARGEST = 1 << 31  # an int of C++
_CONNECTION = re.compile(r"([0-9]+)->([0-9]+)((?:\s+\w+\s+\S+)*)")


def topology(text: str) -> Fabric:
    """Read a `.topo` file of two or three tiers. Latencies (see `latency_ns`) and queues are not a
    fabric's: what the packet engine is told. NetworkError with the line for what cannot be
    read."""
    shape, tiers = _keys(text)
    count = shape.get("tiers", 0)
    if count not in (2, 3):
        raise NetworkError(f"htsim topologies have 2 or 3 tiers; got {count:g}. Correct 'Tiers'.")
    hosts, up = _radix(tiers, 0, "radix_down"), _radix(tiers, 0, "radix_up")
    nodes = _whole("nodes", shape.get("nodes", 0))
    host_gbps, fabric_gbps = (_need(tiers, tier, _SPEED) for tier in (0, 1))
    bundle = _whole("bundle of tier 1", tiers.get(1, {}).get("bundle", 1))
    if count == 2:
        _must_fit("Nodes", nodes, hosts)
        _must_fit("Radix_Up of tier 0", up, bundle)
        return leaf_spine(
            nodes // hosts, hosts, up // bundle, host_gbps=host_gbps, fabric_gbps=fabric_gbps,
            parallel=bundle,
        )  # fmt: skip
    if bundle > 1:
        raise NetworkError(
            f"with three tiers, switches have one cable between them; got Bundle {bundle}. Use 1."
        )
    pod = _whole("podsize", shape.get("podsize", 0))
    _must_fit("Nodes", nodes, pod)
    _must_fit("Podsize", pod, hosts)
    return fat_tree(
        nodes // pod, pod // hosts, hosts, up, _radix(tiers, 1, "radix_up"), host_gbps=host_gbps,
        fabric_gbps=fabric_gbps, core_gbps=_need(tiers, 2, _SPEED),
    )  # fmt: skip


def latency_ns(text: str) -> float | None:
    """The latency of every link of a `.topo` file, None: it says none. NetworkError if it is not
    the same for all, or switches have one of their own, which packets of `engines.packet` do not
    meet."""
    tiers = _keys(text)[1].values()
    found = {tier["downlink_latency_ns"] for tier in tiers if "downlink_latency_ns" in tier}
    switches = max((tier.get("switch_latency_ns", 0.0) for tier in tiers), default=0.0)
    if len(found) > 1 or switches:
        raise NetworkError(
            "all links have one latency, and switches none; got "
            f"{', '.join(f'{ns:g}' for ns in sorted(found))} ns, and {switches:g} of switches. "
            "Say which (--latency-ns)."
        )
    return min(found, default=None)


def starts(text: str) -> bool:
    """Whether a `.cm` file has a connection that starts later than at 0."""
    return any(re.search(r"\sstart\s+0*[1-9]", line) for _, line in _lines(text))


def flows(text: str) -> Flows:
    """Read a `.cm` file: connections in its order. What begins by a trigger is in the step after
    the connection that pulls it; all others start together, whatever their `start` says.
    NetworkError with the line for what cannot be read."""
    rows, pulled_in = list[tuple[int, int, int, int]](), dict[str, int]()
    for number, line in _lines(text):
        if "->" not in line:
            continue
        match = _CONNECTION.fullmatch(line)
        facts = dict(zip(*[iter((match[3] if match else "").split())] * 2))
        if match is None or not re.fullmatch("[0-9]+", facts.get("size", "")):
            _fail(number, line, "a connection is '0->1 id 1 start 0 size 2000000'")
        trigger = facts.get("trigger")
        if trigger is not None and trigger not in pulled_in:
            _fail(number, line, "a trigger is pulled by a connection before")
        step = pulled_in[trigger] + 1 if trigger is not None else 0
        for name in ("send_done_trigger", "recv_done_trigger"):
            if name in facts:
                pulled_in[facts[name]] = max(step, pulled_in.get(facts[name], 0))
        rows.append((int(match[1]), int(match[2]), int(facts["size"]), step))
    return Flows.of(rows)


def connections(flows: Flows, hosts: int) -> str:
    """A `.cm` file of flows of one step; NetworkError for more, and for sizes that htsim cannot
    read."""
    if flows.bytes.max(initial=0) >= _LARGEST:
        raise NetworkError(
            f"htsim reads sizes below {_LARGEST:,} bytes; got a flow of "
            f"{flows.bytes.max():,}. Send fewer, or cut it."
        )
    if len(set(flows.step.tolist())) > 1:
        raise NetworkError(
            f"a connection matrix is of one step; got {len(set(flows.step.tolist()))}. Write each "
            "step to its own file."
        )
    rows = [
        f"{flow.src}->{flow.dst} id {i} start 0 size {flow.bytes}"
        for i, flow in enumerate(flows, 1)
    ]
    return "\n".join([f"Nodes {hosts}", f"Connections {len(flows)}", *rows]) + "\n"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered from 1, without comments and empty ones."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line:
            yield number, line


def _keys(text: str) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """The settings of the whole, and of each tier."""
    shape: dict[str, float] = {}
    tiers: dict[int, dict[str, float]] = {}
    own = shape
    for number, line in _lines(text):
        name, _, value = line.lower().partition(" ")
        if name not in _KEYS:
            _fail(number, line, f"a line begins with one of {', '.join(_KEYS)}")
        try:
            parsed = float(value)
        except ValueError:
            parsed = math.nan
        if not math.isfinite(parsed):
            _fail(number, line, f"{name} is a number")
        if name == "tier":
            own = tiers.setdefault(int(parsed), {})
        else:
            own[name] = parsed
    return shape, tiers


def _need(tiers: Mapping[int, Mapping[str, float]], tier: int, key: str) -> float:
    if key not in tiers.get(tier, {}):
        raise NetworkError(f"tier {tier} of an htsim topology says {key}; got none. Add a line.")
    return tiers[tier][key]


def _radix(tiers: Mapping[int, Mapping[str, float]], tier: int, key: str) -> int:
    return _whole(f"{key} of tier {tier}", _need(tiers, tier, key))


def _whole(name: str, value: float) -> int:
    if not 1 <= value < 1 << 31 or value != int(value):
        raise NetworkError(f"{name} is a whole number of at least 1; got {value:g}. Correct it.")
    return int(value)


def _must_fit(name: str, whole: int, part: int) -> None:
    if whole % part:
        raise NetworkError(
            f"{name} is a multiple of what is below; got {whole} of {part} each. Correct one."
        )


def _fail(number: int, line: str, rule: str) -> NoReturn:
    raise NetworkError(f"{rule}; line {number} is {line!r}. Correct it.")
