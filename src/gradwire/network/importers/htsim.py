"""Reads topologies and traffic of htsim: `.topo` and `.cm` files.

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
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn

from gradwire.errors import NetworkError
from gradwire.network.builders import fat_tree, leaf_spine
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows

_SPEED = "downlink_speed_gbps"
_KEYS = ("nodes", "tiers", "podsize", "tier", _SPEED, "radix_down", "radix_up",
         "downlink_latency_ns", "switch_latency_ns", "oversubscribed", "bundle", "queue_down",
         "queue_up")  # fmt: skip


def topology(text: str) -> Fabric:
    """Reads a `.topo` file of two or three tiers. If a switch has several cables to a core (Bundle
    of tier 2), each is to a core of its own here: the links are the same. Latencies (see
    `latency_ns`) and queues are no part of a fabric: they are settings of the packet engine.
    Raises NetworkError for numbers that contradict each other, and, with the line, for what cannot
    be read."""
    shape, tiers = _keys(text)
    count = shape.get("tiers", 0)
    if count not in (2, 3):
        raise NetworkError(
            f"an htsim topology must have 2 or 3 tiers; got {count:g}. Correct 'Tiers'."
        )
    hosts, up = _radix(tiers, 0, "radix_down"), _radix(tiers, 0, "radix_up")
    nodes = _whole("nodes", shape.get("nodes", 0))
    host_gbps, fabric_gbps = (_need(tiers, tier, _SPEED) for tier in (0, 1))
    bundle = _whole("bundle of tier 1", tiers.get(1, {}).get("bundle", 1))
    pod = nodes if count == 2 else _whole("podsize", shape.get("podsize", 0))
    _must_fit("Nodes", nodes, pod)
    _must_fit("Nodes" if count == 2 else "Podsize", pod, hosts)
    _must_agree(nodes, pod, tiers)
    if count == 2:
        return leaf_spine(
            nodes // hosts, hosts, up // bundle, host_gbps=host_gbps, fabric_gbps=fabric_gbps,
            parallel=bundle,
        )  # fmt: skip
    if bundle > 1:
        raise NetworkError(
            f"with three tiers, a leaf must have one cable to each switch; got Bundle {bundle} of "
            "tier 1. Use 1."
        )
    return fat_tree(
        nodes // pod, pod // hosts, hosts, up, _radix(tiers, 1, "radix_up"), host_gbps=host_gbps,
        fabric_gbps=fabric_gbps, core_gbps=_need(tiers, 2, _SPEED),
    )  # fmt: skip


def latency_ns(text: str) -> float | None:
    """Returns the latency of every link of a `.topo` file, or None if it states none. Raises
    NetworkError if it is not the same for all, or switches have one of their own, which
    `engines.packet` does not simulate."""
    tiers = _keys(text)[1].values()
    found = {tier["downlink_latency_ns"] for tier in tiers if "downlink_latency_ns" in tier}
    switches = max((tier.get("switch_latency_ns", 0.0) for tier in tiers), default=0.0)
    if len(found) > 1 or switches:
        raise NetworkError(
            "all links must have the same latency, and switches none; got "
            f"{', '.join(f'{ns:g}' for ns in sorted(found))} ns, and {switches:g} of switches. "
            "Pass the one to use with --latency-ns."
        )
    return min(found, default=None)


def flows(text: str) -> Flows:
    """Reads a `.cm` file: connections in its order; `start` is whole microseconds, as uet-htsim
    reads it. One that begins by a trigger is in the step after the last connection that pulls it,
    so chains have common steps. A connection of size 0 sends nothing, and never pulls. Raises
    NetworkError, with the line, for what cannot be read, or would never begin."""
    rows, counted, barriers = list[_Row](), None, dict[str, tuple[int, tuple[int, str]]]()
    for number, line in _lines(text):
        words = line.split()
        if "->" in words[0]:
            rows.append(_row(number, line))
        elif words[0] == "Connections":
            counted = words[1:]
        elif words[0] == "trigger":
            match = re.fullmatch(r"trigger id (\S+) (?:.* )?count ([0-9]{1,10})\b.*", line)
            if match and "barrier" in words:
                barriers[match[1]] = int(match[2]), (number, line)
        elif words[0] == "failure":
            _fail(
                number, line, "a failed link is not traffic, and must be named with --fail instead"
            )
        elif words[0] not in ("Nodes", "Triggers", "Failures"):
            _fail(number, line, "a line must begin with a connection, such as 0->1, with Nodes, "
                  "Connections, Triggers or Failures, or with trigger")  # fmt: skip
    if counted not in (None, [str(len(rows))]):
        raise NetworkError(
            f"'Connections' must be the number of connections; got {' '.join(counted or [])!r} "
            f"for {len(rows)}. Correct it."
        )
    _must_count(rows, barriers)
    step = _steps(rows)
    return Flows.of([
        (row.source, row.target, row.bytes, step[i], row.start_us * 1000)
        for i, row in enumerate(rows) if row.bytes
    ])  # fmt: skip


def _must_count(rows: list[_Row], barriers: Mapping[str, tuple[int, tuple[int, str]]]) -> None:
    """Raises NetworkError for a barrier that opens before, or never with, the last connection that
    pulls it. barriers: the count, and the line, by trigger."""
    pulled = Counter(name for row in rows for name in row.pulls)
    for name, (counted, place) in barriers.items():
        if counted != pulled[name]:
            _fail(*place, f"a barrier must count the connections that pull it, {pulled[name]}")


class _Row(NamedTuple):
    source: int
    target: int
    bytes: int
    start_us: int
    trigger: str | None
    pulls: tuple[str, ...]
    place: tuple[int, str]  # number of its line, and the line


_KNOWN = (
    "id",
    "start",
    "size",
    "msg",
    "prio",
    "trigger",
    "send_done_trigger",
    "recv_done_trigger",
)


def _row(number: int, line: str) -> _Row:
    rule = "a connection must be like '0->1 id 1 start 0 size 2000000'"
    ends, *words = line.split()
    match, facts = re.fullmatch(r"([0-9]{1,10})->([0-9]{1,10})", ends), dict[str, str]()
    while words:
        name = words.pop(0)
        if name not in _KNOWN:
            _fail(number, line, f"{rule}, with no words but {', '.join(_KNOWN)}")
        alone = name == "msg" and not (words and words[0].isdigit())
        facts[name] = "" if alone or not words else words.pop(0)
    start = re.fullmatch(r"([0-9]{1,10})(\.[0-9]*)?", facts.get("start", "0"))
    if match is None or start is None or not re.fullmatch("[0-9]{1,19}", facts.get("size", "")):
        _fail(number, line, rule)
    if ("start" in facts) == ("trigger" in facts):
        _fail(number, line, "a connection must have a start or a trigger, and not both")
    pulls = tuple(facts[n] for n in ("send_done_trigger", "recv_done_trigger") if n in facts)
    return _Row(
        int(match[1]), int(match[2]), int(facts["size"]), int(start[1]), facts.get("trigger"),
        pulls, (number, line),
    )  # fmt: skip


def _steps(rows: list[_Row]) -> dict[int, int]:
    """Returns the step of each row."""
    left, begins = Counter(name for row in rows for name in row.pulls), dict[str, list[int]]()
    for i, row in enumerate(rows):
        if row.trigger is not None:
            begins.setdefault(row.trigger, []).append(i)
    found, ready, after = dict[int, int](), deque[int](), Counter[str]()
    for i, row in enumerate(rows):
        if row.trigger is None:
            found[i] = 0
            ready.append(i)
    while ready:
        i = ready.popleft()
        for name in rows[i].pulls if rows[i].bytes else ():
            left[name] -= 1
            after[name] = max(after[name], found[i] + 1)
            if not left[name]:
                found.update(dict.fromkeys(begins.get(name, ()), after[name]))
                ready.extend(begins.get(name, ()))
    for i, row in enumerate(rows):
        if i not in found:
            rule = "a trigger must be pulled by connections that begin without it, and send bytes"
            _fail(*row.place, rule)
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines, numbered from 1, without comments and empty ones."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line:
            yield number, line


def _keys(text: str) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """Returns the settings of the whole topology, and of each tier."""
    shape: dict[str, float] = {}
    tiers: dict[int, dict[str, float]] = {}
    own = shape
    for number, line in _lines(text):
        name, _, value = line.lower().partition(" ")
        if name not in _KEYS:
            _fail(number, line, f"a line must begin with one of {', '.join(_KEYS)}")
        try:
            parsed = float(value)
        except ValueError:
            parsed = math.nan
        if not math.isfinite(parsed):
            _fail(number, line, f"{name} must be a number")
        if name == "tier":
            if parsed not in (0, 1, 2):
                _fail(number, line, "a tier must be 0, 1 or 2")
            own = tiers.setdefault(int(parsed), {})
        elif own.setdefault(name, parsed) != parsed:
            _fail(number, line, f"{name} must have one value; it has {own[name]:g} above")
    return shape, tiers


def _need(tiers: Mapping[int, Mapping[str, float]], tier: int, key: str) -> float:
    if key not in tiers.get(tier, {}):
        raise NetworkError(f"tier {tier} of an htsim topology needs {key}; got none. Add a line.")
    return tiers[tier][key]


def _radix(tiers: Mapping[int, Mapping[str, float]], tier: int, key: str) -> int:
    return _whole(f"{key} of tier {tier}", _need(tiers, tier, key))


def _whole(name: str, value: float) -> int:
    if not 1 <= value < 1 << 31 or value != int(value):
        raise NetworkError(
            f"{name} must be a whole number of at least 1; got {value:g}. Correct it."
        )
    return int(value)


def _must_fit(name: str, whole: int, part: int) -> None:
    if whole % part:
        raise NetworkError(
            f"{name} must be a multiple of the number one level below; got {whole}, and {part} "
            "below. Correct one."
        )


def _must_agree(nodes: int, pod: int, tiers: Mapping[int, Mapping[str, float]]) -> None:
    """Raises NetworkError for numbers that htsim derives from others, if these contradict them."""
    below = {1: pod / tiers[0]["radix_down"], 2: nodes / pod}
    for tier in tiers.keys() & below.keys():
        own, under = tiers[tier], tiers.get(tier - 1, {})
        cables, speed = own.get("bundle", 1.0), own.get(_SPEED, 0.0)
        down = under.get("radix_down", 0.0) * under.get(_SPEED, 0.0)
        times = under.get("oversubscribed")
        for rule, fits, got in (
            (f"Radix_Down of tier {tier} must be {below[tier] * cables:g}, by the other numbers",
             own.get("radix_down") in (None, below[tier] * cables), own.get("radix_down")),
            (f"Radix_Up of tier {tier - 1} must be a multiple of Bundle of tier {tier}",
             under.get("radix_up", 0.0) % max(cables, 1.0) == 0, cables),
            (f"Oversubscribed of tier {tier - 1} must be the bandwidth from below over that above",
             times is None or down == times * speed * under.get("radix_up", 0.0), times),
        ):  # fmt: skip
            if not fits:
                raise NetworkError(f"{rule}; got {got:g}. Correct it.")


def _fail(number: int, line: str, rule: str) -> NoReturn:
    raise NetworkError(f"{rule}; line {number} is {line!r}. Correct it.")
