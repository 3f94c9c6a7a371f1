"""Topologies by hand, as TOML.

    format = 1
    topology = "leaf_spine(4, 4, 4, host_gbps=100)"
    failed = ["spine2", "leaf0-spine1"]              # switches, or cables

    [gbps]                                           # of single cables, each way
    "leaf1-spine0" = 25

or with nodes and cables instead of a builder: hosts = ["a", "b"], cables = [["a", "tor", 25], …].
"""

from __future__ import annotations

import tomllib
from typing import Any, NoReturn

from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric, Link, rate
from gradwire.network.importers.graph import Cable, fabric_of

FORMAT = 1
_KEYS = ("format", "topology", "hosts", "cables", "failed", "gbps")


def topology(text: str) -> Fabric:
    """NetworkError for what cannot be read, and for links that are not there."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NetworkError(f"a topology is a TOML file; {error}. Correct it.") from None
    if data.get("format") != FORMAT:
        _fail(f"the format is {data.get('format')!r}", f"Write format = {FORMAT}")
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        _fail(f"it has {unknown[0]!r}", f"There are {', '.join(_KEYS)}")
    failed = [one for name in data.get("failed", []) for one in both_ways(name)]
    return _base(data).with_rates(_rates(data)).without(*failed)


def _rates(data: dict[str, Any]) -> dict[Link, int]:
    found: dict[Link, int] = {}
    for name, gbps in data.get("gbps", {}).items():
        for link in both_ways(name):
            if not isinstance(link, Link):
                _fail(f"gbps are of cables, and {name!r} is none", "Write 'leaf0-spine1'")
            found[link] = rate(f"gbps of {name}", gbps)
    return found


def both_ways(name: str) -> list[Link | str]:
    """'leaf0-spine1', 'leaf0-spine1-1' for the second cable between them: both of its links. Any
    other name: a switch."""
    one, dash, rest = name.partition("-")
    if not dash:
        return [name]
    other, dash, last = rest.rpartition("-")
    if not (dash and last.isdigit()):
        other, last = rest, "0"
    return [Link(one, other, int(last)), Link(other, one, int(last))]


def _base(data: dict[str, Any]) -> Fabric:
    from gradwire.network.topologies import built  # which knows this file by its name

    if "topology" in data:
        return built(data["topology"])
    cables = data.get("cables", [])
    for cable in cables:
        if not isinstance(cable, list) or len(cable) != 3:
            _fail(f"a cable is {cable!r}", 'Write ["host0", "leaf0", 25]')
    if not cables or "hosts" not in data:
        _fail("it has neither a topology nor hosts and cables", "Write one of them")
    return fabric_of(data["hosts"], [Cable(*cable) for cable in cables])


def _fail(found: str, instead: str) -> NoReturn:
    raise NetworkError(
        f"a topology of format {FORMAT} has a builder, or hosts and cables; {found}. {instead}."
    )
