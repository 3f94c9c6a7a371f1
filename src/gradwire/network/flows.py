"""The flows that hosts send to each other: the demand that is routed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints, whole

LATEST_NS = 10**15
"""The end of the range of starts: a million seconds."""


class Flow(NamedTuple):
    """Bytes from one host to another. Flows of one step start together, or `start_ns` after the
    step began; the next step begins when all of them have arrived."""

    src: int
    dst: int
    bytes: int
    step: int = 0
    start_ns: int = 0


class Flows:
    """Many flows, as columns of equal length: src, dst, bytes, step, start_ns, all int64.

    Hosts are numbered from 0, bytes are 1 or more, and no host sends to itself; otherwise
    NetworkError is raised. Flows with equal columns are equal; nothing changes them.
    """

    def __init__(
        self, src: ArrayLike, dst: ArrayLike, bytes: ArrayLike, step: ArrayLike = 0,
        start_ns: ArrayLike = 0,
    ) -> None:  # fmt: skip
        columns = [
            whole(f"{name} of flows", own, least=int(name == "bytes"))
            for name, own in zip(Flow._fields, (src, dst, bytes, step))
        ]
        columns.append(whole("start_ns of flows", start_ns, LATEST_NS))
        try:
            columns = list(np.broadcast_arrays(*columns))
        except ValueError:
            lengths = ", ".join(str(c.size) for c in columns)
            raise NetworkError(
                f"the columns of flows must have the same length; got {lengths}. Pass one value "
                "per flow in each, or one number for all."
            ) from None
        src, dst, bytes, step, start = map(np.array, columns)  # copies
        self.src, self.dst, self.bytes, self.step, self.start_ns = src, dst, bytes, step, start
        alone = np.flatnonzero(self.src == self.dst)
        if len(alone):
            raise NetworkError(
                f"a flow must go to another host; flow {alone[0]} is {self.src[alone[0]]} -> "
                f"{self.dst[alone[0]]}. Correct it, or leave it out."
            )

    @staticmethod
    def of(flows: Flows | Iterable[Flow | tuple[int, ...]]) -> Flows:
        """Gathers single flows, or tuples of a flow's first three fields or more."""
        if isinstance(flows, Flows):
            return flows
        try:
            rows = [Flow(*row) for row in flows]
        except TypeError:
            raise NetworkError(
                "a flow must be source, destination, bytes and, where there are several steps, "
                f"its step; got {flows!r:.80}. Write for example (0, 1, 1000)."
            ) from None
        return Flows(*zip(*rows)) if rows else Flows([], [], [], [])

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Flow]:
        columns = (getattr(self, name).tolist() for name in Flow._fields)
        return map(Flow._make, zip(*columns))

    def __getitem__(self, which: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Flows:
        """Returns some of the flows, in the order of `which`."""
        return Flows(*(getattr(self, name)[which] for name in Flow._fields))

    def steps(self) -> list[list[Ints]]:
        """Returns the rows of each step, in groups of steps with the same flows in the same
        order."""
        order = np.argsort(self.step, kind="stable")
        begins = np.flatnonzero(np.diff(self.step[order], prepend=-1))
        alike: dict[object, list[Ints]] = {}
        for rows in np.split(order, begins[1:]) if len(order) else ():
            columns = self.src, self.dst, self.bytes, self.start_ns
            own = np.stack([column[rows] for column in columns])
            alike.setdefault(own.tobytes(), []).append(rows)
        return list(alike.values())

    def refuse_beyond(self, number: int, what: str = "host") -> None:
        """Raises NetworkError if a flow's host, or rank, is not one of the first `number`."""
        last = self._named - 1
        if last >= number:
            raise NetworkError(
                f"{what}s must be numbered from 0 to {number - 1}; got a flow with {what} {last}. "
                f"Leave it out, or use more {what}s."
            )

    @property
    def _named(self) -> int:
        """The least number of hosts that has all hosts of the flows."""
        return int(max(self.src.max(initial=-1), self.dst.max(initial=-1))) + 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Flows):
            return NotImplemented
        return len(self) == len(other) and all(map(Flow.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Flows({len(self)} among {self._named} hosts, {int(self.bytes.sum())} bytes)"


def joined(parts: Sequence[Flows]) -> Flows:
    """Concatenates flows, part after part."""
    columns = [[getattr(flows, name) for flows in parts] for name in Flow._fields]
    return Flows(*(np.concatenate(own) if own else np.zeros(0, np.int64) for own in columns))
