"""Buckets: which parameters travel together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

from gradwire.schema import Broken, Flag, List, Schema, Text, Whole

MOST_ELEMENTS = 1 << 48
"""The most elements of a parameter that is read from a file; more is taken for a damaged file."""
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Parameter:
    """The facts of one parameter that planning needs. dtype is torch's name, as "float32".

    sparse: whether its gradient is sparse (COO: rows and their ids), as nn.Embedding(sparse=True)
    makes it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    sparse: bool = False

    def __str__(self) -> str:
        return f"{self.name} {'sparse ' if self.sparse else ''}{self.dtype}{list(self.shape)}"

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        sparse = {"sparse": True} if self.sparse else {}
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype, **sparse}

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes of its gradient."""
        return self.elements * _ITEM_BYTES.get(self.dtype, 4)


NEEDED: Mapping[str, Schema] = {
    "name": Text(),
    "shape": List(Whole(0, MOST_ELEMENTS)),
    "dtype": Text(tuple(_ITEM_BYTES)),
}
OPTIONAL: Mapping[str, Schema] = {"sparse": Flag()}
"""The schema of a parameter in a document, as `to_json` writes it and `parameter_of` reads it."""


def parameter_of(name: str, shape: list[int], dtype: str, sparse: bool = False) -> Parameter:
    """Make a parameter of what `Parameter.to_json` wrote; `Broken` if it is too large."""
    found = Parameter(name, tuple(shape), dtype, sparse)
    if found.elements > MOST_ELEMENTS:
        rule = f"must have at most {MOST_ELEMENTS} elements"
        raise Broken(f"{rule}; got {found.elements}", ".shape")
    return found


@dataclass(frozen=True)
class Bucket:
    """Parameters of one dtype whose gradients travel in one message."""

    parameters: tuple[Parameter, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters, in order."""
        return tuple(p.name for p in self.parameters)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each of its parameters."""
        return tuple(p.elements for p in self.parameters)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each parameter in the bucket's flat tensor, in elements."""
        return (0, *accumulate(self.sizes))[:-1]

    @property
    def dtype(self) -> str:
        """The dtype that all its gradients have."""
        return self.parameters[0].dtype

    @cached_property
    def has_rows(self) -> bool:
        """Whether some of its gradients are sparse (COO)."""
        return any(p.sparse for p in self.parameters)

    @property
    def elements(self) -> int:
        """The total number of elements of its parameters."""
        return sum(self.sizes)

    @property
    def bytes(self) -> int:
        """The total bytes of its gradients."""
        return sum(p.bytes for p in self.parameters)


def group(parameters: Iterable[Parameter], cap_bytes: int) -> list[Bucket]:
    """Group parameters, in order, into buckets of one dtype and at most cap_bytes.

    A parameter larger than that has its own bucket. Dtypes may alternate: each has a bucket that
    is being filled.
    """
    groups: list[list[Parameter]] = []
    filling: dict[str, tuple[list[Parameter], int]] = {}  # by dtype, with the bytes so far
    for p in parameters:
        last, filled = filling.get(p.dtype, ([], 0))
        if not last or filled + p.bytes > cap_bytes:
            last, filled = [], 0
            groups.append(last)
        last.append(p)
        filling[p.dtype] = last, filled + p.bytes
    return [Bucket(tuple(g)) for g in groups]


def digest(*facts: object) -> int:
    """Returns a hash of 63 bits that differs if any fact does; the same on every machine."""
    data = repr(facts).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def by_name(parameters: Sequence[Parameter]) -> dict[str, Parameter]:
    """Returns the parameters by name."""
    return {p.name: p for p in parameters}
