"""Reads topologies that are written by hand, as TOML.

    format = 1
    topology = "leaf_spine(4, 4, 4, host_gbps=100)"
    failed = ["spine2", "leaf0-spine1"]              # switches, or cables

    [gbps]                                           # of single cables, each way
    "leaf1-spine0" = 25

or with nodes and cables instead of a builder: hosts = ["a", "b"], cables = [["a", "tor", 25], …].
Then switches in `failed` and `gbps` have the names that they have in `cables`; names of the fabric
that is made of them (`gradwire network whatif` shows them) are understood, too, if no cable has
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from gradwire.document import TOML, Document
from gradwire.errors import NetworkError
from gradwire.network.built import built
from gradwire.network.fabric import Fabric, Link, rate
from gradwire.network.importers.graph import Cable, fabric_of
from gradwire.schema import Broken, List, Map, Number, Row, Table, Text

FORMAT = 1


def topology(text: str) -> Fabric:
    """Reads a topology. Raises NetworkError for what cannot be read, and for unknown links."""
    fabric: Fabric = _DOCUMENT.read(text)
    return fabric


def _fabric(
    topology: str = "", hosts: Sequence[str] = (), cables: Sequence[tuple[str, str, float]] = (),
    failed: Sequence[str] = (), gbps: Mapping[str, float] = {},
) -> Fabric:  # fmt: skip
    if not topology and not cables:
        raise Broken("must have a topology, or hosts and cables; got neither")
    if topology and (hosts or cables):
        raise Broken("must have a topology, or hosts and cables, but not both; got both")
    if topology:
        return _changed(built(topology), failed, gbps)
    own = _Cables(hosts, cables)
    more_failed = [name for name in failed if not own.fail(name)]
    more_gbps = {name: each for name, each in gbps.items() if not own.change(name, each)}
    return _changed(fabric_of(hosts, own.cables), more_failed, more_gbps)


class _Cables:
    """The cables of a file. What fails, or has another rate, is named as in the file."""

    def __init__(self, hosts: Sequence[str], cables: Sequence[tuple[str, str, float]]) -> None:
        self.cables, known = [Cable(*own) for own in cables], set(hosts)
        self._between = dict[frozenset[str], list[int]]()  # the cables between two switches
        for i, own in enumerate(self.cables):
            if known.isdisjoint(own[:2]):
                self._between.setdefault(frozenset(own[:2]), []).append(i)
        self._switches = {end for pair in self._between for end in pair}

    def fail(self, name: str) -> bool:
        """Lets a switch or a cable fail. Returns whether the file has one of this name."""
        found = self._cable(name)
        if name in self._switches:
            found = [i for pair, own in self._between.items() if name in pair for i in own]
        for i in found:
            self.cables[i] = self.cables[i]._replace(works=False)
        return bool(found)

    def change(self, name: str, gbps: float) -> bool:
        """Gives a cable another rate. Returns whether the file has one of this name."""
        found = self._cable(name)
        for i in found:
            self.cables[i] = self.cables[i]._replace(gbps=rate(f"gbps of {name}", gbps) / 1e9)
        return bool(found)

    def _cable(self, name: str) -> list[int]:
        """Returns the index of the cable with this name, if there is one."""
        one, other, number = _ends(name, self._switches) or Link("", "")
        return self._between.get(frozenset((one, other)), [])[number : number + 1]


def _changed(fabric: Fabric, failed: Sequence[str], gbps: Mapping[str, float]) -> Fabric:
    """Returns the fabric with what fails, and what has another rate."""
    down = [one for name in failed for one in both_ways(fabric, name)]
    return fabric.with_rates(_rates(fabric, gbps)).without(*down)


def _rates(fabric: Fabric, gbps: Mapping[str, float]) -> dict[Link, int]:
    found: dict[Link, int] = {}
    for name, own in gbps.items():
        for link in both_ways(fabric, name):
            if not isinstance(link, Link):
                raise Broken(
                    "must name cables, such as 'leaf0-spine1'; got " + repr(name), ".gbps"
                )
            found[link] = rate(f"gbps of {name}", own)
    return found


def both_ways(fabric: Fabric, name: str) -> list[Link | str]:
    """Returns both links of a cable, as 'leaf0-spine1', or 'leaf0-spine1-1' for the second one
    between the two. Any other name is a switch. Names of the fabric's switches may have dashes."""
    found = _ends(name, {end for link in fabric.links for end in link[:2]})
    if found is None:
        return [name]
    one, other, number = found
    return [Link(one, other, number), Link(other, one, number)]


def _ends(name: str, switches: Set[str]) -> Link | None:
    """Returns the cable of a name, one way, or None if it is that of a switch."""
    parts = name.split("-")
    if name in switches or len(parts) == 1:
        return None
    cables = [_cable("-".join(parts[:i]), parts[i:], switches) for i in range(1, len(parts))]
    return next((own for own in cables if {*own[:2]} <= switches), cables[0])


def _cable(one: str, rest: Sequence[str], switches: Set[str]) -> Link:
    """Returns the link from a switch to that of `rest`, whose last word may be a number."""
    *other, last = rest
    is_number = bool(other) and last.isdecimal() and len(last) < 10
    if is_number and "-".join(rest) not in switches:
        return Link(one, "-".join(other), int(last))
    return Link(one, "-".join(rest))


_GBPS = Number(above=0)
_DOCUMENT = Document(
    "a topology",
    Table(
        {},
        {
            "topology": Text(), "hosts": List(Text()), "cables": List(Row(Text(), Text(), _GBPS)),
            "failed": List(Text()), "gbps": Map(_GBPS),
        },
        make=_fabric, by_hand=True,
    ),
    NetworkError,
    'Write for example: format = 1, topology = "leaf_spine(4, 4, 4)", or hosts = ["host0", …] and '
    'cables = [["host0", "leaf0", 25], …]',
    FORMAT, TOML,
)  # fmt: skip
