"""Chakra execution traces: a file for each rank, NAME.0.et, NAME.1.et, …, of nodes that compute,
send, receive or take part in a collective, and wait for each other.

Computing nodes of a rank run one after the other, as on a stream; its CPU and its device have one
stream each. Ranks' n-th collectives in a group (`pg_name`; without one: of all ranks) are the same
collective, and the group's ranks are those that name it. `comm_size`: bytes that a rank
contributes. Source: MLCommons Chakra, et_def.proto; Sridharan et al. 2023.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.demand import Pattern
from gradwire.network.flows import Flows
from gradwire.network.patterns import gather, pairwise, ring, ring_gather, ring_scatter, scatter
from gradwire.network.workload import Workload
from gradwire_formats.protobuf import fields, messages, numbers, signed

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
BARRIER = 9
PATTERNS: Mapping[int, Pattern] = {
    0: ring, 1: gather, 2: ring_gather, 3: gather, 4: scatter, 5: scatter, 6: pairwise,
    7: ring_scatter, 8: ring_scatter,
}  # fmt: skip
"""The traffic pattern of each type of collective, by the type's number."""


@dataclass
class Node:
    """The fields of a node that matter here. says: its attributes that are integers or text."""

    id: int = 0
    type: int = 0
    seconds: float = 0.0
    after: list[int] = field(default_factory=list)
    says: dict[str, int | str] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Returns an integer attribute; 0 if it is missing."""
        value = self.says.get(name, 0)
        return value if isinstance(value, int) else 0


class _Call(NamedTuple):
    """A rank's part in a message or collective: the kind and bytes that it states, and the rows
    with which its part begins and ends."""

    rank: int
    kind: int
    bytes: int
    begin: int
    end: int


def chakra(folder: str) -> Workload:
    """The same as `workload`."""
    return workload(folder)


def workload(folder: str | Path) -> Workload:
    """Reads the traces in a folder. Raises NetworkError, with file and node, if they cannot be
    read or do not fit together."""
    return _Reader(_traces(Path(folder))).workload


def _traces(folder: Path) -> list[list[Node]]:
    """Returns each rank's nodes, in an order in which a node comes after those that it waits
    for."""
    names = [(re.search(r"\.(\d+)\.et$", path.name), path) for path in folder.glob("*.et")]
    by_rank = {int(m[1]): path for m, path in names if m}
    if not names or sorted(by_rank) != list(range(len(names))):
        raise NetworkError(
            "traces are NAME.0.et, NAME.1.et and so on in a folder of their own, one for each "
            f"rank; {folder} has {', '.join(sorted(p.name for _, p in names)[:5]) or 'none'}. "
            "Name the folder, and add what is missing."
        )
    found = []
    for rank in range(len(by_rank)):
        try:
            found.append(_in_order(list(_nodes(by_rank[rank].read_bytes()))))
        except (OSError, NetworkError) as error:
            raise NetworkError(f"{by_rank[rank].name}: {error}") from None
    return found


def _nodes(data: bytes) -> Iterator[Node]:
    """Yields the nodes of a file; its first message describes the whole file."""
    for number, message in enumerate(messages(data)):
        if number:
            yield _node(message)


def _node(message: bytes) -> Node:
    node = Node()
    for number, value in fields(message):
        if number == 10 and isinstance(value, bytes):
            node.says.update(_attribute(value))
        elif number in (4, 5):
            node.after += numbers(value)
        elif isinstance(value, int):
            if number == 1:
                node.id = value
            elif number == 3:
                node.type = value
            elif number == 7:
                node.seconds = value / 1e6
    return node


def _attribute(message: bytes) -> dict[str, int | str]:
    """Returns an attribute that is an integer of any width, a boolean or text; others do not
    matter for the network."""
    name = ""
    found: int | str | None = None
    for number, value in fields(message):
        if isinstance(value, bytes):
            if number == 1:
                name = value.decode(errors="replace")
            elif number == 29:
                found = value.decode(errors="replace")
        elif number in (7, 9, 11, 13, 19, 21, 23, 25, 27):
            found = signed(value)
        elif number in (15, 17):  # zigzag
            found = value >> 1 ^ -(value & 1)
    return {} if found is None else {name: found}


def _in_order(nodes: list[Node]) -> list[Node]:
    """Sorts nodes so that each comes after those that it waits for; otherwise in the file's
    order."""
    place = {node.id: i for i, node in enumerate(nodes)}
    if len(place) < len(nodes):
        twice = next(id for id, many in Counter(node.id for node in nodes).items() if many > 1)
        raise NetworkError(f"every node has a number of its own; two have {twice}. Correct it.")
    then, open = defaultdict[int, list[int]](list), [0] * len(nodes)
    for i, node in enumerate(nodes):
        for before in set(node.after):
            if before not in place:
                raise NetworkError(
                    f"a node waits for nodes that are there; {node.id} waits for {before}. Add it."
                )
            then[place[before]].append(i)
            open[i] += 1
    ready, order = [i for i, many in enumerate(open) if not many], list[Node]()
    heapq.heapify(ready)
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for after in then[i]:
            open[after] -= 1
            if not open[after]:
                heapq.heappush(ready, after)
    if len(order) < len(nodes):
        stuck = next(node.id for node, many in zip(nodes, open) if many)
        raise NetworkError(f"nodes do not wait in circles; {stuck} does. Correct its waits.")
    return order


class _Reader:
    """Converts traces to a workload: a row for each node, two for nodes of the network."""

    def __init__(self, traces: list[list[Node]]) -> None:
        self.workload = Workload(len(traces))
        self._seconds, self._before, self._after = list[float](), list[int](), list[int]()
        self._computed = list[tuple[int, int]]()
        self._sent = defaultdict[tuple[int, int, int], list[_Call]](list)
        self._received = defaultdict[tuple[int, int, int], list[_Call]](list)
        self._calls = defaultdict[str, list[list[_Call]]](list)
        for rank, nodes in enumerate(traces):
            self._rank(rank, nodes)
        self.workload.work(np.array(self._seconds), len(self._seconds))
        ranks, rows = np.array(self._computed, np.int64).reshape(-1, 2).T
        self.workload.show("compute", "computes", ranks, rows)
        self._wait_for(self._before, self._after)
        self._messages()
        for lane, (group, calls) in enumerate(self._calls.items()):
            members = sorted({call.rank for call in calls[0]})
            for number, own in enumerate(calls):
                self._collective(lane, members, own, f"collective {number} of group {group!r}")

    def _rank(self, rank: int, nodes: list[Node]) -> None:
        end, last, calls = dict[int, int](), dict[int, int](), Counter[str]()
        streams = (node.number("is_cpu_op") for node in nodes if node.type == COMPUTE)
        shown = min(streams, default=0)  # its device's stream, if any
        for node in nodes:
            begin = self._row(node.seconds if node.type == COMPUTE else 0.0)
            end[node.id] = begin if node.type not in (SEND, COLLECTIVE) else self._row(0.0)
            self._before += [end[before] for before in node.after]
            self._after += [begin] * len(node.after)
            own = _Call(
                rank, node.number("comm_type"), node.number("comm_size"), begin, end[node.id]
            )
            if node.type == COMPUTE:
                stream = node.number("is_cpu_op")
                if stream in last:
                    self._before.append(last[stream])
                    self._after.append(begin)
                last[stream] = begin
                if stream == shown:
                    self._computed.append((rank, begin))
            elif node.type in (SEND, RECEIVE):
                is_sent, tag = node.type == SEND, node.number("comm_tag")
                peer = node.number("comm_dst" if is_sent else "comm_src")
                ends = (rank, peer, tag) if is_sent else (peer, rank, tag)
                (self._sent if is_sent else self._received)[ends].append(own)
            elif node.type == COLLECTIVE:
                group = str(node.says.get("pg_name", ""))
                known = self._calls[group]
                if calls[group] == len(known):
                    known.append([])
                known[calls[group]].append(own)
                calls[group] += 1

    def _row(self, seconds: float) -> int:
        self._seconds.append(seconds)
        return len(self._seconds) - 1

    def _wait_for(self, before: Sequence[int], after: Sequence[int]) -> None:
        self.workload.wait(np.array(before, np.int64), np.array(after, np.int64))

    def _messages(self) -> None:
        """Pairs messages: for two ranks and a tag, the first sent is the first received."""
        pairs = list[tuple[_Call, _Call]]()
        for key in sorted(self._sent.keys() | self._received.keys()):
            sent, received = self._sent[key], self._received[key]
            if [call.bytes for call in sent] != [call.bytes for call in received]:
                one, other, tag = key
                raise NetworkError(
                    "what is sent is received, in the same order and size; rank "
                    f"{one} sends {len(sent)} messages to {other} with tag {tag}, which "
                    f"receives {len(received)}. Trace both."
                )
            pairs += zip(sent, received)
        if not pairs:
            return
        ends = np.array([(s.rank, r.rank) for s, r in pairs], np.int64)
        sizes = np.array([s.bytes for s, _ in pairs], np.int64)
        ways, first, which = np.unique(ends, axis=0, return_index=True, return_inverse=True)
        kind = np.unique(sizes[first], return_inverse=True)[1].reshape(-1)
        # Messages of one size are routed together; empty ones still wait.
        flows = Flows(ways[:, 0], ways[:, 1], np.maximum(sizes[first], 1), kind)
        message = self.workload.send(self.workload.connect(flows)[which.reshape(-1)], sizes)
        self.workload.show("wire", "message", ends[:, 0], message, bytes=sizes)
        self.workload.wait(np.array([s.begin for s, _ in pairs], np.int64), message)
        for end in ([s.end for s, _ in pairs], [r.end for _, r in pairs]):
            self.workload.wait(message, np.array(end, np.int64))

    def _collective(self, lane: int, members: list[int], calls: list[_Call], name: str) -> None:
        kinds = {(call.kind, call.bytes) for call in calls}
        if sorted(call.rank for call in calls) != members or len(kinds) > 1:
            raise NetworkError(
                f"every rank of a group takes part in its collectives, in one order; {name} has "
                f"{len(calls)} of {len(members)} ranks and {len(kinds)} kinds. Trace all ranks."
            )
        kind, bytes = kinds.pop()
        begin = np.array([call.begin for call in calls], np.int64)
        end = np.array([call.end for call in calls], np.int64)
        if kind == BARRIER or not bytes:
            together = self.workload.work(0.0, 1)
            self.workload.wait(begin, np.repeat(together, len(begin)))
            self.workload.wait(np.repeat(together, len(end)), end)
            return
        if kind not in PATTERNS:
            known = ", ".join(map(str, [*PATTERNS, BARRIER]))
            raise NetworkError(f"comm_type is one of {known}; {name} has {kind}. Correct it.")
        ranks, gate = np.array(members), np.zeros(self.workload.ranks, np.int64)
        gate[[call.rank for call in calls]] = begin
        flows = PATTERNS[kind](len(members), bytes)
        flows = Flows(ranks[flows.src], ranks[flows.dst], flows.bytes, flows.step)
        done = self.workload.exchange(gate, flows, lane, name)
        self.workload.wait(done[[call.rank for call in calls]], end)
