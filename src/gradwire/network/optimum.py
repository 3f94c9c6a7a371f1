"""The least time that any shares of paths can take on the links between switches, by a linear
program: the lower bound for a plan around failures, and for unequal links.

Uplinks whose links have the same rates everywhere are alike, and so are cores: some best shares
treat them alike, so one variable stands for all of a class.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints, Reals
from gradwire.network.fabric import NO_LINK, Fabric
from gradwire.network.flows import Flows


class Shares(NamedTuple):
    """The part of the bytes of pairs of leaves on each path, [pairs, paths]; seconds: until the
    last link between switches is done."""

    source: Ints
    target: Ints
    part: Reals
    seconds: float


def best_shares(flows: Flows, topology: Fabric) -> Shares:
    """Returns the best shares for flows that start together, and leave their leaf."""
    leaf = topology.leaf_of
    ends, which = topology.pairs(leaf[flows.src], leaf[flows.dst])
    sums = np.zeros(len(ends[0]))
    np.add.at(sums, which, flows.bytes)
    blocks = list(_blocks(topology, ends, sums))
    part = np.zeros((len(ends[0]), len(topology.uplinks) * max(topology.cores, 1)))
    if not blocks:
        return Shares(*ends, part, 0.0)
    value, seconds = _solved(blocks)
    for block, own in zip(blocks, np.split(value, np.cumsum([b.works.size for b in blocks])[:-1])):
        shares = np.maximum(own.reshape(block.works.shape), 0) / block.many
        part[block.rows[:, None], np.arange(len(block.of_path))] = shares[:, block.of_path]
    return Shares(*ends, part, seconds)


class _Block(NamedTuple):
    """Pairs of leaves, all in a pod or none, with a variable for each class of paths."""

    rows: Ints  # indices of pairs
    of_path: Ints  # the class of each path
    many: Ints  # paths of each class
    works: NDArray[np.bool_]  # [pairs, classes]
    link: Ints  # [pairs, classes, hops]
    seconds: Reals  # [pairs, classes, hops]: of this link, if the pair sends all so

    @property
    def least(self) -> float:
        """The seconds of the pair that takes longest, if each sends all by its best class: the
        scale of the program. That of the slowest link may be so large that all else is rounding.
        """
        own = np.where(self.works[:, :, None], self.seconds, np.inf)
        own = np.where(self.link == NO_LINK, 0.0, own).max(2)
        return float(own.min(1).max(initial=0.0))


def _blocks(fabric: Fabric, ends: tuple[Ints, Ints], sums: Reals) -> Iterator[_Block]:
    """Yields pairs of leaves, which send `sums` bytes: those within pods, then those between."""
    low = np.concatenate([fabric.up, fabric.down]).T
    high = np.concatenate([fabric.core_up, fabric.core_down])
    above = high.transpose(1, 0, 2).reshape(len(fabric.uplinks), -1)
    uplink = _alike(np.hstack([low, above]))
    uplinks = np.bincount(uplink)
    of_path, many, sharing = uplink, uplinks, uplinks[:, None].repeat(4, 1)
    for far in (False, True):
        rows = np.flatnonzero(fabric.crosses(*ends) == far)
        if not len(rows):
            continue
        if far:
            core = _alike(high.reshape(-1, fabric.cores).T)
            cores = np.bincount(core)
            of_path = (uplink[:, None] * len(cores) + core).reshape(-1)
            many = np.outer(uplinks, cores).reshape(-1)
            sharing = np.repeat(uplinks, len(cores))[:, None].repeat(4, 1)
            sharing[:, 2:] = many[:, None]
        first = np.unique(of_path, return_index=True)[1]
        shape = len(rows), len(first)
        a, b = (np.repeat(leaf[rows], shape[1]) for leaf in ends)
        link = fabric.hops(a, b, np.tile(first, shape[0])).reshape(*shape, 4)
        rates: Ints = np.where(link == NO_LINK, 1, fabric.rates[link])
        with np.errstate(divide="ignore"):
            seconds = sums[rows, None, None] * 8 / rates / sharing
        yield _Block(rows, of_path, many, rates.min(axis=2) > 0, link, seconds)


def _alike(columns: Ints) -> Ints:
    """Returns the class of each row: equal rows have the same."""
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def _solved(blocks: list[_Block]) -> tuple[Reals, float]:
    """Returns the parts, block by block, and the least t such that each pair's parts add up to 1
    and no link is busy longer than t seconds."""
    sparse, linprog = _scipy()
    works = np.concatenate([block.works.reshape(-1) for block in blocks])
    link = np.concatenate([block.link.reshape(-1, 4) for block in blocks])
    seconds = np.concatenate([block.seconds.reshape(-1, 4) for block in blocks])
    there = (link != NO_LINK) & works[:, None]
    scale = max(block.least for block in blocks)
    variable = np.broadcast_to(np.arange(len(works))[:, None], link.shape)
    used, row = np.unique(link[there], return_inverse=True)
    n = len(works)
    loads = sparse.coo_array(
        (np.append(seconds[there] / max(scale, 1e-300), np.full(len(used), -1.0)),
         (np.append(row, np.arange(len(used))),
          np.append(variable[there], np.full(len(used), n)))),
        shape=(len(used), n + 1),
    )  # fmt: skip
    pair = np.repeat(
        np.arange(sum(len(b.rows) for b in blocks)),
        np.concatenate([np.full(len(b.rows), len(b.many)) for b in blocks]),
    )
    whole = sparse.coo_array((np.ones(n), (pair, np.arange(n))), shape=(pair[-1] + 1, n + 1))
    bounds = np.zeros((n + 1, 2))
    bounds[:, 1] = np.append(works.astype(float), np.inf)
    found = linprog(
        np.append(np.zeros(n), 1.0), A_ub=loads.tocsr(), b_ub=np.zeros(len(used)),
        A_eq=whole.tocsr(), b_eq=np.ones(pair[-1] + 1), bounds=bounds, method="highs",
    )  # fmt: skip
    if found.status != 0:
        raise NetworkError(
            "leaves that send to each other need a path that works; the linear program says: "
            f"{found.message} Restore a link, or leave these flows out."
        )
    return found.x[:n], float(found.fun) * scale


def _scipy() -> tuple[Any, Any]:
    try:
        sparse = importlib.import_module("scipy.sparse")
        return sparse, importlib.import_module("scipy.optimize").linprog
    except ImportError:
        raise NetworkError(
            "the best shares need the package scipy, which is not installed. Run 'pip install "
            "scipy', or use a scheme that does not need it, such as 'wrap'."
        ) from None
