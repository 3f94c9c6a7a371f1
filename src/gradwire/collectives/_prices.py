"""Prices of each way to sum sparse tensors: arithmetic on facts that all ranks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from torch import Tensor

from gradwire import kernels

SAMPLE = 1024  # the length of a sample: its shift, and the places in one random part of all
_NOTHING = 0  # padding of a sample; places in it are stored plus one
_MULTIPLIER = 0x9E3779B1  # 2^32 / golden ratio: spreads neighbours evenly
_WORD = 1 << 32
_SECONDS_PER_ENTRY = 10e-9  # measured: to code, split, merge and write one entry
_SECONDS_PER_DENSE_BYTE = 0.3e-9
_WHOLE = 0.9  # rows count as whole if entries are this part of the elements of non-zero rows


def sampled(places: Tensor, n: int) -> list[int]:
    """Returns a sample of places, SAMPLE numbers: the shift, then the sampled places.

    places: (k,) int64. A place is sampled if its hash is below 2^32 / 2^shift, where shift is the
    least that leaves few enough: a sample of a larger shift is a subset of one of a smaller.
    """
    hashes = (places * _MULTIPLIER) % _WORD
    shift = 0
    while int((hashes < _WORD >> shift).sum()) > SAMPLE - 1:
        shift += 1
    kept = (places[hashes < _WORD >> shift] + 1).tolist()
    return [shift, *kept, *[_NOTHING] * (SAMPLE - 1 - len(kept))]


def _union(samples: Sequence[Sequence[int]]) -> float:
    """Estimates the number of places in the union of all ranks' lists."""
    kept, shift = _kept(samples)
    return float(len(set().union(*kept)) << shift)


def _kept(samples: Sequence[Sequence[int]]) -> tuple[list[list[int]], int]:
    """Returns each rank's places in the part that all samples cover, one of 2^shift; and shift."""
    shift = max(sample[0] for sample in samples)
    bound = _WORD >> shift
    return [
        [p for p in sample[1:] if p != _NOTHING and (p - 1) * _MULTIPLIER % _WORD < bound]
        for sample in samples
    ], shift


def _alone(samples: Sequence[Sequence[int]]) -> list[float]:
    """Estimates, for each rank, the number of places that no other rank has."""
    kept, shift = _kept(samples)
    holders = Counter(place for sample in kept for place in sample)
    return [float(sum(holders[p] == 1 for p in sample) << shift) for sample in kept]


@dataclass(frozen=True)
class Facts:
    """entries, full_rows: their number on each rank; full_rows: rows that are not zero. rows: the
    number of all rows, 0 if rows are not considered. of_rows: entries are rows, of `width` items
    each, of tables that are never dense."""

    world: int
    size: int
    rows: int
    width: int
    item_bytes: int
    mean_bytes: int
    entries: Sequence[int]
    full_rows: Sequence[int]
    latency_seconds: float
    bytes_per_second: float
    entry_samples: Sequence[Sequence[int]]
    row_samples: Sequence[Sequence[int]]
    of_rows: bool = False

    @property
    def items(self) -> int:
        """The number of values of one entry."""
        return self.width if self.of_rows else 1

    @property
    def entry_seconds(self) -> float:
        """The time to code, split, merge and write one entry."""
        more = (self.items - 1) * self.item_bytes
        return _SECONDS_PER_ENTRY + more * _SECONDS_PER_DENSE_BYTE


def _place_bytes(n: float, k: float) -> float:
    """Returns the bytes of one place among k of n: as a bitmap, or in 2 + log2(n/k) bits."""
    return min(n / k, 2 + log2(max(1.0, n / k))) / 8 if k > 0 else 0.0


def _packed_place_bytes(facts: Facts, k: float) -> float:
    """`_place_bytes` of entries, where one place stands for a chunk if whole rows are sent."""
    rows = 0 if facts.of_rows else facts.width * sum(facts.full_rows)
    whole = rows > 0 and sum(facts.entries) >= _WHOLE * rows
    return _place_bytes(facts.size, k) / (min(kernels.CHUNK, facts.width) if whole else 1)


def prices(facts: Facts) -> dict[str, float]:
    """Returns seconds by member; a dense all-reduce comes first, if it is possible."""
    n, size, late = facts.world, facts.size, facts.latency_seconds
    wire = 1 / facts.bytes_per_second
    k = max(facts.entries)
    together = min(max(_union(facts.entry_samples), k), n * k, size)
    item = facts.item_bytes * facts.items
    each = item + _place_bytes(size, k)
    packed = item + _packed_place_bytes(facts, k)
    summed = facts.mean_bytes * facts.items + _packed_place_bytes(facts, together)
    share, work = (n - 1) / n, facts.entry_seconds
    out = {
        "allgather": (n - 1) * k * each * wire + 2 * late + n * k * work,
        "zen": share * (k * packed + together * summed) * wire + 4 * late
        + (2 * k + 2 * together) * work,
        "sparcml": _doubling(facts),
    }  # fmt: skip
    if not facts.of_rows:
        dense = 2 * share * 4 * size * wire + (1 + 2 * (n - 1)) * late
        out = {"dense": dense + 4 * size * _SECONDS_PER_DENSE_BYTE, **out}
    if facts.rows:
        out["columns"] = _by_columns(facts, wire)
    return out


def _by_columns(facts: Facts, wire: float) -> float:
    """Returns the seconds of `columns`: single rows go to all, stripes of others to owners and
    back."""
    n, row = facts.world, max(facts.full_rows)
    union = min(max(_union(facts.row_samples), row), n * row, facts.rows)
    alone = [float(k) for k in facts.full_rows] if n <= 2 else _alone(facts.row_samples)
    single = min(kernels.most_singles(alone), row)  # of the busiest rank
    shared = max(0.0, union - sum(min(k, single) for k in alone)) if n > 2 else 0.0
    stripes = (n - 1) / n * ((row - single) * facts.item_bytes + shared * facts.mean_bytes)
    values = (stripes + (n - 1) * single * facts.item_bytes) * facts.width
    ids = (n - 1) * row * _place_bytes(facts.rows, row)
    touched = (row + union) * facts.width * facts.item_bytes
    moves = 3 if n > 2 else 2
    local = touched * _SECONDS_PER_DENSE_BYTE
    return (values + ids) * wire + moves * facts.latency_seconds + local


def _doubling(facts: Facts) -> float:
    """Returns the seconds of recursive doubling: rounds send the union of 1, 2, 4, … ranks."""
    late = facts.latency_seconds
    seconds, held = 0.0, 1
    while held < facts.world:
        k = max(_union(facts.entry_samples[:held]), max(facts.entries))
        one = 4 * facts.items
        sent = min(k * (one + _packed_place_bytes(facts, k)), float(one * facts.size))
        seconds += sent / facts.bytes_per_second + 2 * late + 2 * k * facts.entry_seconds
        held *= 2
    if facts.world & (facts.world - 1):  # ranks beyond the power of two are folded
        seconds *= 1 + 2 / max(1.0, log2(facts.world))
    return seconds
