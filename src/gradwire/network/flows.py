"""What hosts send to each other: the demand that is routed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwire.errors import NetworkError
from gradwire.network.arrays import Ints


class Flow(NamedTuple):
    """Bytes from one host to another. Flows of one step start together; the next step's begin
    when these have arrived."""

    src: int
    dst: int
    bytes: int
    step: int = 0


class Flows:
    """Many flows, as columns of equal length: src, dst, bytes, step, all int64.

    Hosts are numbered from 0, bytes are 1 or more, and no host sends to itself: NetworkError
    otherwise. Compared and printed by what they hold; nothing changes them.
    """

    def __init__(
        self, src: ArrayLike, dst: ArrayLike, bytes: ArrayLike, step: ArrayLike = 0
    ) -> None:
        columns = [_whole(name, v) for name, v in zip(Flow._fields, (src, dst, bytes, step))]
        try:
            columns = list(np.broadcast_arrays(*columns, np.zeros_like(columns[0])))[:4]
        except ValueError:
            lengths = ", ".join(str(c.size) for c in columns)
            raise NetworkError(
                f"src, dst, bytes and step are equally long; got {lengths}. Give one of each for "
                "every flow, or one number for all."
            ) from None
        self.src, self.dst, self.bytes, self.step = (np.atleast_1d(c) for c in columns)
        _refuse("hosts are numbered from 0", (self.src < 0) | (self.dst < 0), self)
        _refuse("a flow has 1 byte or more", self.bytes < 1, self)
        _refuse("steps are numbered from 0", self.step < 0, self)
        _refuse("a flow goes to another host", self.src == self.dst, self)

    @staticmethod
    def of(flows: Flows | Iterable[Flow | tuple[int, ...]]) -> Flows:
        """Gather single flows, or tuples of a flow's first three or all four fields."""
        if isinstance(flows, Flows):
            return flows
        try:
            rows = [Flow(*row) for row in flows]
        except TypeError:
            raise NetworkError(
                "a flow is source, destination, bytes and, where there are several, its step; got "
                f"{flows!r:.80}. Write (0, 1, 1000)."
            ) from None
        return Flows(*zip(*rows)) if rows else Flows([], [], [], [])

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Flow]:
        columns = (self.src, self.dst, self.bytes, self.step)
        return map(Flow._make, zip(*(column.tolist() for column in columns)))

    def __getitem__(self, which: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Flows:
        """Some of them, in their order."""
        return Flows(self.src[which], self.dst[which], self.bytes[which], self.step[which])

    def steps(self) -> list[list[Ints]]:
        """Rows of each step, in groups of steps that are alike: the same flows in the same
        order."""
        order = np.argsort(self.step, kind="stable")
        begins = np.flatnonzero(np.diff(self.step[order], prepend=-1))
        alike: dict[object, list[Ints]] = {}
        for rows in np.split(order, begins[1:]) if len(order) else ():
            own = np.stack([self.src[rows], self.dst[rows], self.bytes[rows]])
            alike.setdefault(own.tobytes(), []).append(rows)
        return list(alike.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Flows):
            return NotImplemented
        return len(self) == len(other) and all(map(Flow.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        hosts = int(max(self.src.max(initial=-1), self.dst.max(initial=-1))) + 1
        return f"Flows({len(self)} among {hosts} hosts, {int(self.bytes.sum())} bytes)"


def joined(parts: Sequence[Flows]) -> Flows:
    """One after the other."""
    columns = [[getattr(flows, name) for flows in parts] for name in Flow._fields]
    return Flows(*(np.concatenate(own) if own else np.zeros(0, np.int64) for own in columns))


def _whole(name: str, values: ArrayLike) -> Ints:
    try:
        given = np.asarray(values)
    except ValueError:  # rows of different lengths
        given = np.zeros((0, 0), object)
    if given.size == 0 and given.ndim == 1:
        given = given.astype(np.int64)
    is_beyond = given.dtype == np.uint64 and int(given.max(initial=0)) >= 1 << 63
    if given.dtype.kind not in "iu" or given.ndim > 1 or is_beyond:
        raise NetworkError(
            f"{name} of flows are whole numbers below 2^63 in one row; got {given.dtype} of shape "
            f"{given.shape}. Round them, or pass a list of integers."
        )
    return given.astype(np.int64)


def _refuse(rule: str, breaks: NDArray[np.bool_], flows: Flows) -> None:
    if breaks.any():
        i = int(breaks.argmax())
        got = f"{flows.src[i]} -> {flows.dst[i]}, {flows.bytes[i]} bytes, step {flows.step[i]}"
        raise NetworkError(f"{rule}; flow {i} is {got}. Correct it, or leave it out.")
