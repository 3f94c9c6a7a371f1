"""Hosts below leaves, every leaf linked to every spine; switches route as Linux does.

    spine0      spine1                  a host's own address: leaves hash addresses and ports, and
      │  ╲    ╱  │                      so choose a spine for each connection
      │    ╳     │
    leaf0       leaf1                   its address on plane 1: by spine 1, whatever the ports
     │ │         │ │
    hosts       hosts

Both kinds of address exist at the same time, so hashed and pinned traffic run on the very same
network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradwire.errors import LabError
from gradwire.lab.addresses import (
    INTERFACE,
    LOOPBACK_INTERFACE,
    host_name,
    leaf_prefix,
    placed_address,
)
from gradwire.lab.rates import (
    FASTEST_BITS_PER_SECOND,
    SLOWEST_BITS_PER_SECOND,
    format_rate,
    shape_host,
    shape_port,
)
from gradwire.lab.wiring import Cable, End, Machine, Wiring
from gradwire.network.fabric import LEAF, Fabric

MOST_LEAVES, MOST_BELOW, MOST_SPINES = 200, 250, 100  # as many as there are addresses for

_LEAF, _SPINE = "169.254.0.1", "169.254.0.2"  # addresses for neighbours, the same on every link
_ROUTER = {"ip_forward": "1"}
_POLICY, _FIELDS = "fib_multipath_hash_policy", "fib_multipath_hash_fields"
_SEED = "fib_multipath_hash_seed"
_CUSTOM, _FIVE_TUPLE = "3", "55"  # 0x37: addresses, protocol, ports
"""Policy 1 would take the sender's own hash over a veth link, which does not depend on ports."""


def leaf_spine(fabric: Fabric, bits_per_second: int, hash_seed: int) -> Wiring:
    """Return a fabric's wiring. bits_per_second: the fastest host's link; all others are in
    proportion. hash_seed: that of leaves, above 0. Raises LabError if it is no leaf-spine of
    single cables, there are too few addresses, leaves have no spine in common, a rate is out of
    range, or a spine's name is none for an interface. A cable that failed one way is left out.
    """
    _check(fabric)
    return _Builder(fabric, bits_per_second, hash_seed).wiring()


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_TAKEN = re.compile(rf"{LEAF}|host[0-9]+|{LOOPBACK_INTERFACE}")


class _Builder:
    def __init__(self, fabric: Fabric, bits_per_second: int, hash_seed: int) -> None:
        self._fabric, self._seed = fabric, hash_seed
        self._scale = bits_per_second / int(max(fabric.host_up.max(), fabric.host_down.max()))
        self._leaf_of = fabric.leaf_of.tolist()
        self._below: list[list[int]] = [[] for _ in range(fabric.leaves)]
        for host, leaf in enumerate(self._leaf_of):
            self._below[leaf].append(host)
        self._spines = [name for name, _ in fabric.uplinks]
        works = (fabric.up > 0) & (fabric.down > 0)
        self._uplinks = [[u for u, there in enumerate(row) if there] for row in works.tolist()]

    def wiring(self) -> Wiring:
        hosts = range(self._fabric.hosts)
        return Wiring(
            [
                *map(self._host, hosts),
                *map(self._leaf, range(self._fabric.leaves)),
                *map(self._spine, range(len(self._spines))),
            ],
            [*map(self._host_cable, hosts), *self._cables()],
            [self._addresses(host)[0] for host in hosts],
            [self._addresses(host)[1:] for host in hosts],
        )

    # -- machines --------------------------------------------------------------------------

    def _host(self, host: int) -> Machine:
        first, *on_planes = own = self._addresses(host)
        gateway = f"via {_LEAF} dev {INTERFACE} onlink src"
        lines = [
            *(f"addr add {address}/32 dev {INTERFACE}" for address in own),
            f"route add default {gateway} {first}",
            *(
                f"route add {leaf_prefix(None, plane)} {gateway} {address}"
                for plane, address in enumerate(on_planes)
            ),
        ]
        return Machine(host_name(host), lines)

    def _leaf(self, leaf: int) -> Machine:
        lines = [f"addr add {_LEAF}/32 dev lo"]
        for host in self._below[leaf]:
            lines += [f"route add {own}/32 dev {host_name(host)}" for own in self._addresses(host)]
        for other in range(self._fabric.leaves):
            if other != leaf:
                lines += self._routes_to(other, leaf)
        hashing = {_POLICY: _CUSTOM, _FIELDS: _FIVE_TUPLE, _SEED: str(self._seed)}
        return Machine(f"leaf{leaf}", lines, _ROUTER | hashing)

    def _routes_to(self, other: int, leaf: int) -> Iterator[str]:
        common = [u for u in self._uplinks[leaf] if u in self._uplinks[other]]
        if not common:
            raise LabError(
                f"two leaves need a spine that both have a link to; leaf {leaf} and leaf {other} "
                "have none. Let fewer links fail."
            )
        hops = {u: f"nexthop via {_SPINE} dev {self._spines[u]} onlink" for u in common}
        yield f"route add {leaf_prefix(other)} {' '.join(hops.values())}"
        for u, hop in hops.items():
            yield f"route add {leaf_prefix(other, u)} {hop}"

    def _spine(self, plane: int) -> Machine:
        lines = [f"addr add {_SPINE}/32 dev lo"]
        for leaf in range(self._fabric.leaves):
            if plane in self._uplinks[leaf]:
                to = leaf_prefix(leaf), leaf_prefix(leaf, plane)
                lines += [f"route add {own} via {_LEAF} dev leaf{leaf} onlink" for own in to]
        return Machine(self._spines[plane], lines, _ROUTER)

    def _addresses(self, host: int) -> list[str]:
        """Return a host's own address, and those on planes."""
        leaf = self._leaf_of[host]
        place = self._below[leaf].index(host)
        return [placed_address(leaf, place, p) for p in (None, *range(len(self._spines)))]

    # -- cables ----------------------------------------------------------------------------

    def _host_cable(self, host: int) -> Cable:
        up, down = self._fabric.host_up[host, 0], self._fabric.host_down[host, 0]
        leaf = f"leaf{self._leaf_of[host]}"
        return Cable(
            End(host_name(host), INTERFACE, shape_host(self._rate(up))),
            End(leaf, host_name(host), shape_port(self._rate(down))),
        )

    def _cables(self) -> Iterator[Cable]:
        for leaf, uplinks in enumerate(self._uplinks):
            for u in uplinks:
                up, down = self._fabric.up[leaf, u], self._fabric.down[leaf, u]
                yield Cable(
                    End(f"leaf{leaf}", self._spines[u], shape_port(self._rate(up))),
                    End(self._spines[u], f"leaf{leaf}", shape_port(self._rate(down))),
                )

    def _rate(self, of_fabric: int) -> int:
        found = round(int(of_fabric) * self._scale)
        if not SLOWEST_BITS_PER_SECOND <= found <= FASTEST_BITS_PER_SECOND:
            raise LabError(
                "every link needs a rate from 10kbit to 400gbit, in proportion to the fastest "
                f"host's; a link of {int(of_fabric) / 1e9:g} Gbit/s would have "
                f"{format_rate(found)}/s here. Choose another rate of hosts, or links that differ "
                "less."
            )
        return found


def _check(fabric: Fabric) -> None:
    names = [name for name, _ in fabric.uplinks]
    if fabric.pods > 1 or fabric.host_up.shape[1] > 1 or len(set(names)) < len(names):
        raise LabError(
            "the lab builds only leaves and spines, with one cable between any two and one to "
            f"each host; got {fabric.pods} pods, {fabric.host_up.shape[1]} ports to a host and "
            f"{len(names)} uplinks to {len(set(names))} switches. Write for example "
            "leaf_spine(leaves=4, hosts=4, spines=4)."
        )
    for name in names:
        if not _NAME.fullmatch(name) or _TAKEN.fullmatch(name):
            raise LabError(
                "a spine's name is that of interfaces here, which have at most 15 letters, "
                "digits, and characters of '._-', and differ from leaf0, host0 and lo; got "
                f"{name!r}. Rename it."
            )
    most = int(max(sum(fabric.leaf_of == leaf) for leaf in range(fabric.leaves)))
    if fabric.leaves > MOST_LEAVES or most > MOST_BELOW or len(names) > MOST_SPINES:
        raise LabError(
            f"the lab has addresses for {MOST_LEAVES} leaves of {MOST_BELOW} hosts and "
            f"{MOST_SPINES} spines; got {fabric.leaves} leaves, {most} hosts and {len(names)} "
            "spines. Use fewer."
        )
