"""Places one piece after the other, each on the least loaded path."""

from __future__ import annotations

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints, Reals, same_length, whole
from gradwire.network.dice import draws, pick
from gradwire.network.fabric import Fabric
from gradwire.network.native import core, tiers


def least_loaded(
    fabric: Fabric, source: Ints, target: Ints, amount: Ints, seed: int,
    load: Reals | None = None, local: bool = False,
) -> Ints:  # fmt: skip
    """Returns a path for each piece between leaves, in the order given: the one whose slowest
    link, with the piece, is done first; of equal ones that with the least sum of links, then any.

    load: the load of every link before; pieces are added to it. local: switches see only their own
    links: the leaf chooses an uplink, then the switch a core. Every pair of leaves must have a
    path that works. Raises NetworkError for unknown leaves, and for pairs without any path.
    """
    load = np.zeros(len(fabric.rates)) if load is None else load
    source, target = (whole("leaves of pieces", end, fabric.leaves) for end in (source, target))
    amount = whole("amounts of pieces", amount)
    same_length(source=source, target=target, amount=amount)
    _check_paths(fabric, source, target, load)
    native = core()
    if native is None:
        return least_loaded_twin(fabric, source, target, amount, seed, load, local)
    path = np.zeros(len(source), np.int64)
    native.least_loaded(
        (len(path), source.ctypes.data, target.ctypes.data, amount.ctypes.data), tiers(fabric),
        local, seed % (1 << 64), load.ctypes.data, path.ctypes.data,
    )  # fmt: skip
    return path


def _check_paths(fabric: Fabric, source: Ints, target: Ints, load: Reals) -> None:
    is_load = load.dtype == np.float64 and load.flags.c_contiguous
    if not is_load or load.shape != fabric.rates.shape:
        raise NetworkError(
            f"load must be a row of float64, one for each of {len(fabric.rates)} links; got "
            f"{load.dtype} of shape {load.shape}. Begin with np.zeros(len(fabric.rates))."
        )
    if not fabric.paths(source, target).all():
        raise NetworkError(
            f"leaves that send to each other need a path; of {len(source)} pieces some have none. "
            "Leave them out."
        )


def least_loaded_twin(
    fabric: Fabric, source: Ints, target: Ints, amount: Ints, seed: int,
    load: Reals, local: bool,
) -> Ints:  # fmt: skip
    """Returns the same paths, slowly: piece after piece in Python."""
    found = np.zeros(len(source), np.int64)
    drawn = draws(seed, len(source))
    for i, (a, b, size) in enumerate(zip(source.tolist(), target.tolist(), amount.tolist())):
        far = fabric.pod_of[a] != fabric.pod_of[b]
        paths = np.arange(len(fabric.uplinks) * (fabric.cores if far else 1))
        here, there = (np.full(len(paths), leaf, np.int64) for leaf in (a, b))
        hops = fabric.hops(here, there, paths)[:, : 4 if far else 2]
        with np.errstate(divide="ignore"):
            waits = np.where(
                (fabric.rates[hops] > 0).all(1, keepdims=True),
                (load[hops] + size) / fabric.rates[hops], np.inf,
            )  # fmt: skip
        if local:
            found[i] = _locally(waits, fabric.cores if far else 1, int(drawn[i]))
        else:
            found[i] = _first(waits.max(1), waits.cumsum(1)[:, -1], int(drawn[i]))
        load[hops[found[i]]] += size
    return found


def _locally(waits: Reals, cores: int, drawn: int) -> int:
    """Returns the path by the uplink that is done first, then by the core whose link is."""
    own = waits.reshape(-1, cores, waits.shape[1])
    uplink = _first(own[:, :, 0].min(1), np.zeros(len(own)), drawn)
    if own.shape[2] == 2:
        return uplink
    return uplink * cores + _first(own[uplink, :, 2], np.zeros(cores), drawn)


def _first(longest: Reals, total: Reals, drawn: int) -> int:
    """Returns the index of the least, the first from a drawn index on if several are equal."""
    order = np.roll(np.arange(len(longest)), -pick(drawn, len(longest)))
    return int(order[np.lexsort((total[order], longest[order]))[0]])
