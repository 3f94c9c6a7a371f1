"""What members of the families are made of: a name, printing, and the small values they share."""

from __future__ import annotations

from abc import ABC
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, NamedTuple


class Key(NamedTuple):
    """All that randomness may depend on: never timing, never grouping."""

    seed: int
    step: int
    parameter: str


class StepInfo(NamedTuple):
    """What a feedback may know of the step. `clip_scale` multiplies the gradient first."""

    step: int = 0
    clip_scale: float = 1.0


@dataclass(frozen=True)
class Claims:
    """What a compressor promises for one parameter of n elements; the contract suite measures it.

    sections: (dtype name, element count) of each part of the payload.
    sums: adding payloads number by number adds the tensors, so AllReduce may carry them.
    lossless: decode(encode(x)) == x, bit for bit.
    contraction: the c of |x - decode(encode(x))|² <= (1 - c)·|x|².
    """

    sections: tuple[tuple[str, int], ...]
    sums: bool = False
    lossless: bool = False
    contraction: float = 0.0


@dataclass(frozen=True)
class Recurrence:
    """A feedback as data, for compressors that fuse it into their one pass over memory.

    momentum None: v += g.  Otherwise DGC (Lin et al. 2018, section 3.1): u = m·u + g; v += u,
    or with Nesterov u = m·(u + g); v += u + g.  mask: u is zeroed where v was sent.
    """

    momentum: float | None = None
    nesterov: bool = False
    mask: bool = False


class Member(ABC):
    """One member of a family: a frozen dataclass with a name, whose fields are its parameters."""

    name: ClassVar[str]

    def __str__(self) -> str:
        given = [text for f in fields(self) if (text := _argument(self, f))]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(given)})" if given else self.name


def _argument(member: Any, f: Any) -> str:
    """One parameter as it is typed: bare if it is required, named if it is not the default."""
    value = getattr(member, f.name)
    shown = repr(value).replace("'", '"')
    if f.default is MISSING:
        return shown
    return "" if value == f.default else f"{f.name}={shown}"
