"""The switches between hosts, and every path through them.

            core 0      core 1        core 2      core 3      cores of plane 0 ┊ of plane 1
             │   ╲     ╱   │           │   ╲     ╱   │
    pod 0   switch 0 ─── (pod 1's)    switch 1 ─── (pod 1's)   one for each uplink of a leaf
             │    ╲               ╱     │
            leaf 0     ╲      ╱       leaf 1                   each has a link to every switch
             │ │         ╲╱            │ │                     of its pod
            hosts                     hosts

A leaf-spine is one pod, and its switches are the spines. A path up decides the path down: between
leaves of one pod its number is the uplink, between pods uplink * cores + the core of that uplink's
switch. Links that failed, or do not exist, have rate 0.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints, same_length, whole

NO_LINK = -1
_FASTEST = 10**18  # bits per second
_MOST_UPLINKS, _MOST_LINKS = 1 << 20, 1 << 28
_MANY_LEAVES = 4096  # with more, sorting pairs is cheaper than marking them in a square table
LEAF = r"leaf[0-9]+"
"""The names of leaves, as a regular expression. No switch above may have one."""
BELOW = -1
"""Stands for a path: the bytes stay below one leaf, and use no link between switches."""
EVERY = -2
"""Stands for a path: packets are spread over all usable ones, in proportion to their rates."""


class Link(NamedTuple):
    """One direction of a cable between two switches; cables between the same two are numbered."""

    source: str
    target: str
    number: int = 0

    @property
    def name(self) -> str:
        """The name of its cable, such as leaf0-spine1, or leaf0-spine1-1 for the second one
        between the two."""
        return "-".join([*self[:2], str(self.number)] if self.number else self[:2])


@dataclass(frozen=True, eq=False)
class Fabric:
    """Switches and links; the builders (`leaf_spine`, `fat_tree`, …) and importers make it.

    leaf_of: the leaf of each host; pod_of: the pod of each leaf. uplinks: those of every leaf,
    each with the name of the switch and the number of the cable; plane_of: the port of hosts that
    each uplink serves. cores: the number above each switch. Rates are bits per second, each way:
    host_up and host_down [hosts, ports]; `rates` of links in the order of `links`. Raises
    NetworkError for columns that do not fit together.
    """

    leaf_of: Ints
    pod_of: Ints
    uplinks: tuple[tuple[str, int], ...]
    plane_of: Ints
    cores: int
    host_up: Ints
    host_down: Ints
    rates: Ints

    def __post_init__(self) -> None:
        count("cores", self.cores, 0)
        count("leaves", self.leaves)
        shape = np.shape(self.host_up)
        if len(shape) != 2 or np.shape(self.host_down) != shape:
            raise NetworkError(
                "rates of hosts must have shape [hosts, ports], the same up as down; got shapes "
                f"{shape} and {np.shape(self.host_down)}. Give a row for each host."
            )
        for name, end in (
            ("leaf_of", self.leaves), ("pod_of", self.leaves), ("plane_of", shape[1]),
            ("host_up", _FASTEST + 1), ("host_down", _FASTEST + 1), ("rates", _FASTEST + 1),
        ):  # fmt: skip
            given = np.asarray(getattr(self, name))
            own = whole(f"{name} of a fabric", given.reshape(-1), end).reshape(given.shape)
            object.__setattr__(self, name, own)
        same_length(leaf_of=self.leaf_of, host_up=self.host_up)
        same_length(uplinks=self.uplinks, plane_of=self.plane_of)
        _refuse_uplinks(self.uplinks)
        links = 2 * sum(self._sizes)
        if self.rates.shape != (links,):
            raise NetworkError(
                f"every link needs a rate; there are {links} links and {self.rates.size} rates, "
                f"of shape {self.rates.shape}. Give them in one row, in the order of `links`."
            )

    # -- sizes, rates and links ------------------------------------------------------------

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.leaf_of)

    @property
    def leaves(self) -> int:
        """The number of leaf switches."""
        return len(self.pod_of)

    @cached_property
    def pods(self) -> int:
        """The number of pods."""
        return int(self.pod_of.max()) + 1

    @property
    def planes(self) -> int:
        """The number of ports of each host."""
        return int(self.host_up.shape[1])

    @property
    def up(self) -> Ints:
        """The rates from leaves up, [leaves, uplinks]."""
        return self._rates_of(0)

    @property
    def down(self) -> Ints:
        """The rates down to leaves, [leaves, uplinks]."""
        return self._rates_of(1)

    @property
    def core_up(self) -> Ints:
        """The rates from switches to cores, [pods, uplinks, cores]."""
        return self._rates_of(2)

    @property
    def core_down(self) -> Ints:
        """The rates from cores to switches, [pods, uplinks, cores]."""
        return self._rates_of(3)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every directed link between switches: up from leaves, down to leaves, up from switches
        to cores, down from cores; each leaf by leaf or pod by pod."""
        low = [
            (f"leaf{leaf}", self._switch(pod, name), number)
            for leaf, pod in enumerate(self.pod_of.tolist())
            for name, number in self.uplinks
        ]
        high = [
            (self._switch(pod, name), f"core{u * self.cores + c}", number)
            for pod in range(self.pods)
            for u, (name, number) in enumerate(self.uplinks)
            for c in range(self.cores)
        ]
        return tuple(
            Link(b, a, number) if is_down else Link(a, b, number)
            for tier in (low, high)
            for is_down in (False, True)
            for a, b, number in tier
        )

    def numbers_of(self, links: Iterable[Link]) -> Ints:
        """Returns the indices of links in `links`. Raises NetworkError if one is unknown."""
        number = {link: i for i, link in enumerate(self.links)}
        found = []
        for link in links:
            if link not in number:
                raise NetworkError(
                    f"a link must be one of the topology; got {link}. A link is for example "
                    f"{self._example}."
                )
            found.append(number[link])
        return np.array(found, np.int64)

    # -- paths -----------------------------------------------------------------------------

    def crosses(self, source: Ints, target: Ints) -> NDArray[np.bool_]:
        """Whether the leaves of each pair are in different pods."""
        far: NDArray[np.bool_] = self.pod_of[source] != self.pod_of[target]
        return far

    def uplink_of(self, source: Ints, target: Ints, path: NDArray[np.integer]) -> Ints:
        """Returns the uplink of its leaf with which each path between leaves begins."""
        return np.where(self.crosses(source, target), path // max(self.cores, 1), path)

    def hops(self, source: Ints, target: Ints, path: NDArray[np.integer]) -> Ints:
        """Returns the links of paths between leaves, [paths, 4]: indices of `links` or NO_LINK."""
        n, low, high = len(self.uplinks), *self._sizes
        crosses, uplink = self.crosses(source, target), self.uplink_of(source, target, path)
        core = np.where(crosses, path % max(self.cores, 1), 0)
        found = np.full((len(path), 4), NO_LINK, np.int64)
        found[:, 0] = source * n + uplink
        found[:, 1] = low + target * n + uplink
        for column, leaf in ((2, source), (3, target)):
            switch = self.pod_of[leaf] * n + uplink
            start = 2 * low + (column - 2) * high
            found[:, column] = np.where(crosses, start + switch * self.cores + core, NO_LINK)
        return found

    def paths(self, source: Ints, target: Ints) -> Ints:
        """Returns the number of paths between leaves, whether they work or not."""
        return len(self.uplinks) * np.where(self.crosses(source, target), self.cores, 1)

    def pairs(self, source: Ints, target: Ints) -> tuple[tuple[Ints, Ints], Ints]:
        """Returns the distinct pairs of leaves, in order, and the index of each pair in them."""
        numbers = source * self.leaves + target
        if self.leaves > _MANY_LEAVES:
            some, which = np.unique(numbers, return_inverse=True)
            return np.divmod(some, self.leaves), which
        there = np.zeros(self.leaves**2, np.bool_)
        there[numbers] = True
        which = (np.cumsum(there) - 1)[numbers]
        return np.divmod(np.flatnonzero(there), self.leaves), which

    def path_rates(self, source: Ints, target: Ints) -> Ints:
        """Returns the rate of the slowest link of every path between leaves, [pairs, paths]; 0 if
        the path cannot be used, or does not exist."""
        ends = np.minimum(self.up[source], self.down[target])
        far = self.crosses(source, target)
        if not far.any():
            return ends
        found = np.zeros((*ends.shape, max(self.cores, 1)), np.int64)
        pods = self.pod_of[source[far]], self.pod_of[target[far]]
        between = np.minimum(self.core_up[pods[0]], self.core_down[pods[1]])
        found[far, :, : self.cores] = np.minimum(ends[far, :, None], between)
        found = found.reshape(len(source), -1)
        found[~far, : ends.shape[1]] = ends[~far]
        return found

    def usable_paths(self, source: Ints, target: Ints) -> Ints:
        """Returns the number of usable paths of every pair of leaves."""
        (a, b), which = self.pairs(source, target)
        many: Ints = np.count_nonzero(self.path_rates(a, b), axis=1)
        return many[which]

    # -- copies ----------------------------------------------------------------------------

    def is_like(self, other: Fabric, but: tuple[str, ...] = ()) -> bool:
        """Whether the other has the same switches, links and rates; `but` these fields."""
        return self is other or all(
            np.array_equal(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
            if one.name not in but
        )

    def without(self, *failed: Link | str) -> Fabric:
        """Returns this fabric without some links, in one direction; or, by name, without cables,
        in both, or switches, with all of their links. Raises NetworkError if one is unknown."""
        return self.with_rates(dict.fromkeys(self.named(*failed), 0))

    def named(self, *names: Link | str) -> list[Link]:
        """Returns the links that are named, by themselves, by their cable or by the switch at one
        end. Raises NetworkError if one is unknown."""
        texts = any(isinstance(one, str) for one in names)

        def called(link: Link) -> set[Link | str]:
            back = Link(link.target, link.source, link.number)
            return {link, *link[:2], link.name, back.name} if texts else {link}

        known = {name for link in self.links for name in called(link)}
        for one in names:
            if one not in known:
                link = self._example
                shown = one if isinstance(one, str) else one.name
                raise NetworkError(
                    f"what fails must be a link or a switch of the topology; got '{shown}'. Name "
                    f"an existing one, such as {link.source}-{link.target} or {link.target}."
                )
        return [link for link in self.links if not called(link).isdisjoint(names)]

    def with_rates(self, bits_per_second: Mapping[Link, int]) -> Fabric:
        """Returns this fabric with other rates of some links. Raises NetworkError if a link is
        unknown, or a rate is not a whole number, or more than an Ebit."""
        rates = self.rates.copy()
        for number, (link, rate) in zip(self.numbers_of(bits_per_second), bits_per_second.items()):
            if not 0 <= rate <= _FASTEST or rate != int(rate):
                raise NetworkError(
                    "the rate of a link must be a whole number of bits per second, up to "
                    f"{_FASTEST:.0e}; got {link} with {rate}. Write for example {10**11}."
                )
            rates[number] = rate
        return replace(self, rates=rates)

    # -- inside ----------------------------------------------------------------------------

    @property
    def _example(self) -> Link:
        """A link for messages: one of its own, or one of another topology if it has none."""
        return self.links[0] if self.links else Link("leaf0", "spine0")

    @property
    def _sizes(self) -> tuple[int, int]:
        """The numbers of links up from leaves, and up from switches."""
        return self.leaves * len(self.uplinks), self.pods * len(self.uplinks) * self.cores

    def _rates_of(self, tier: int) -> Ints:
        low, high = self._sizes
        own = np.split(self.rates, np.cumsum([low, low, high]))[tier]
        n = len(self.uplinks)
        return own.reshape((self.leaves, n) if tier < 2 else (self.pods, n, self.cores))

    def _switch(self, pod: int, name: str) -> str:
        return name if self.pods == 1 else f"pod{pod}.{name}"


def fabric_of(topology: Fabric) -> Fabric:
    """Returns the topology. Raises NetworkError if it is no fabric, such as a text."""
    if not isinstance(topology, Fabric):
        raise NetworkError(
            f"a topology must be a Fabric; got {topology!r:.80}. Make one, for example by "
            "gradwire.network.leaf_spine(leaves=4, hosts=4, spines=4)."
        )
    return topology


def _refuse_uplinks(uplinks: tuple[tuple[str, int], ...]) -> None:
    """Raises NetworkError for uplinks whose links would be called as others are."""
    if len(set(uplinks)) < len(uplinks):
        name, number = next(own for own in uplinks if uplinks.count(own) > 1)
        raise NetworkError(
            f"every uplink must be a cable of its own; got cable {number} to {name} twice. Number "
            "the cables to a switch from 0."
        )
    for name in dict.fromkeys(name for name, _ in uplinks):
        if name.startswith("leaf") and re.fullmatch(LEAF, name):
            raise NetworkError(
                f"names such as leaf0 are those of leaves; got {name} for a switch above them. "
                f"Call it for example spine.{name}."
            )


def rate(name: str, gbps: float) -> int:
    """Returns a link's bits per second. Raises NetworkError unless they are 1 bit to 1 Ebit."""
    given = above_zero(name, gbps)
    bits = round(given * 1e9) if given <= _FASTEST else 0  # a product may be infinite
    if not 1 <= bits <= _FASTEST:
        raise NetworkError(
            f"{name} must be from 1 bit to 1 Ebit per second; got {gbps} Gbit/s. Write for "
            "example 100."
        )
    return bits


def above_zero(name: str, value: float) -> float:
    """Returns the value. Raises NetworkError unless it is above 0 and finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise NetworkError(
            f"{name} must be above 0 and finite; got {value!r}. Write for example 100 (Gbit/s), "
            "or 2."
        )
    return value


def count(name: str, number: int, least: int = 1, most: int | None = None) -> int:
    """Returns the number. Raises NetworkError unless it is whole, and from `least` to `most`."""
    is_number = isinstance(number, int) and not isinstance(number, bool)
    too_many = is_number and most is not None and number > most
    if not is_number or number < least or too_many:
        raise NetworkError(
            f"{name} is a whole number of {f'at most {most}' if too_many else f'at least {least}'}"
            f"; got {number!r}. Write for example {max(least, 4)}."
        )
    return number


def counts(**numbers: int) -> None:
    """Raises NetworkError unless each is a whole number above 0, and no more than the most links
    of a fabric."""
    for name, number in numbers.items():
        count(name, number, most=_MOST_LINKS)


def evenly(
    pods: int, leaves: int, hosts: int, uplinks: int, named: Callable[[int], tuple[str, int]],
    host_rate: int, rate: int, *, cores: int = 0, core_rate: int = 0, planes: int = 1,
) -> Fabric:  # fmt: skip
    """Builds a fabric with equally many leaves in every pod, hosts and uplinks at every leaf, and
    uplinks in every plane, and one rate for all links of a tier. named: returns the switch and the
    cable of an uplink."""
    low, high = pods * leaves * uplinks, pods * uplinks * cores
    count("uplinks of a leaf", uplinks, 1, _MOST_UPLINKS)
    count("links of a fabric", 2 * (pods * leaves * hosts * planes + low + high), 0, _MOST_LINKS)
    host = np.arange(pods * leaves * hosts)
    at_hosts = np.full((len(host), planes), host_rate, np.int64)
    return Fabric(
        host // hosts, np.arange(pods * leaves) // leaves, tuple(map(named, range(uplinks))),
        np.arange(uplinks) * planes // uplinks, cores, at_hosts, at_hosts,
        np.repeat(np.array([rate, core_rate], np.int64), [2 * low, 2 * high]),
    )  # fmt: skip
