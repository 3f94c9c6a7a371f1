"""Topologies as text, as ns-3 simulations of RDMA read them: HPCC, ASTRA-sim, SimAI.

    7 3 6                    nodes, switches, links
    4 5 6                    which are switches
    0 4 100Gbps 0.001ms 0    from, to, rate, delay, error rate

SimAI begins with nodes, GPUs of a machine, NVSwitches, switches, links and the GPU's name.
"""

from __future__ import annotations

import re
from typing import NoReturn

from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric
from gradwire.network.importers import read
from gradwire.network.importers.graph import Cable, fabric_of

_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([kmgtKMGT])(i?))?([bB])(?:ps|/s)")
_PREFIXES = ["", "k", "m", "g", "t"]
_BITS = {"b": 1, "B": 8}


def ns3(file: str) -> Fabric:
    """Reads a file. Raises NetworkError if it cannot be read, and as `topology` does."""
    return topology(read(file))


def topology(text: str) -> Fabric:
    """Reads a topology. Hosts are the nodes that are not switches, in order. NVSwitches and their
    links are left out, because they are inside machines. Delays and error rates are ignored.
    Raises NetworkError, with the line, if it cannot be read."""
    lines = [(i, line.split()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) < 2:
        raise NetworkError(
            f"the text says nodes, switches and links; got {len(lines)} lines. Begin with "
            "'nodes switches links', and then which nodes are switches."
        )
    number, head = lines[0]
    inside, counts = (2, (0, 3, 4)) if len(head) == 6 else (None, (0, 1, 2))
    nodes, switches, links = (_number(number, head, i) for i in counts)
    within = _number(number, head, inside) if inside is not None else 0
    number, named = lines[1]
    switch = [_number(number, named, i) for i in range(len(named))]
    if len(switch) != switches + within:
        _fail(number, named, f"{switches + within} switches are named")
    left_out = set(sorted(switch)[:within])
    if len(lines) - 2 != links:
        _fail(*lines[-1], f"there are {links} links; got {len(lines) - 2}")
    cables = []
    for number, words in lines[2:]:
        ends = [_number(number, words, i) for i in (0, 1)]
        if max(ends) >= nodes:
            _fail(number, words, f"nodes are numbered from 0 to {nodes - 1}")
        if left_out.isdisjoint(ends):
            cables.append(Cable(str(ends[0]), str(ends[1]), _gbps(number, words)))
    hosts = [str(node) for node in range(nodes) if node not in set(switch)]
    return fabric_of(hosts, cables)


def _number(number: int, words: list[str], place: int) -> int:
    if place >= len(words) or not re.fullmatch("[0-9]{1,9}", words[place]):
        _fail(number, words, f"word {place + 1} is a whole number")
    return int(words[place])


def _gbps(number: int, words: list[str]) -> float:
    """Returns the rate of a link, as ns-3 reads it: GBps are bytes, Gib/s binary."""
    match = _RATE.fullmatch(words[2]) if len(words) > 2 else None
    if match is None:
        _fail(number, words, "word 3 is a rate, '100Gbps' for example")
    thousand = 1024 if match[3] else 1000
    times: int = thousand ** _PREFIXES.index((match[2] or "").lower()) * _BITS[match[4]]
    return float(match[1]) * times / 1e9


def _fail(number: int, words: list[str], rule: str) -> NoReturn:
    raise NetworkError(f"{rule}; line {number} is {' '.join(words)!r}. Correct it.")
