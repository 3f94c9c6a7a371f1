"""What members of the families are made of: a name, printing, and the small values they share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from gradwire.registry import parse_member


class Key(NamedTuple):
    """All that randomness may depend on: never timing, never grouping.

    rank: who draws. What all ranks must draw alike (the places of randk) does not look at it.
    """

    seed: int
    step: int
    parameter: str
    rank: int = 0


class StepInfo(NamedTuple):
    """What a feedback may know of the step. `clip_scale` multiplies the gradient first.

    shape: of the parameter, where x is all of it; () where it is not known.
    """

    step: int = 0
    clip_scale: float = 1.0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claims:
    """What a compressor promises for one parameter of n elements; the contract suite measures it.

    sections: (dtype name, element count) of each part of the payload.
    elements: how many of the n a payload speaks of; None: all.
    sums: adding payloads number by number adds the tensors, so AllReduce may carry them.
    lossless: decode(encode(x)) == x, bit for bit.
    unbiased: the mean of decode(encode(x)) over keys is x.
    contraction: the c of |x - decode(encode(x))|² <= (1 - c)·|x|², for x whose largest magnitude
        is 2^-96 or more; None: no such promise.
    wants_feedback: what is not sent is lost without `ef`, `dgc` or another feedback.
    direction: signs without a scale: what arrives is no gradient in the gradient's unit, so no
        parameter of a model may travel uncompressed beside it.
    fixed: the sections have the sizes that are stated. Otherwise there is one section of bytes,
        as large as it can get, which begins with how many of them are used: 8 bytes.
        What follows it in a message begins at the next multiple of 16 (`padded`).
    usual: of a payload without a fixed size that is no entries: bytes that are to be expected, of
        what is normally distributed.
    entries: a payload is places and values, which `read` gives.
    listed: these places are int32 numbers, not a code.
    read_again: bytes of each fp32 element that are read a second time, as all must be seen before
        any can be encoded; and, beside a feedback, before what is left is known.
    """

    sections: tuple[tuple[str, int], ...]
    elements: int | None = None
    sums: bool = False
    lossless: bool = False
    unbiased: bool = False
    contraction: float | None = None
    wants_feedback: bool = False
    direction: bool = False
    fixed: bool = True
    usual: int | None = None
    entries: bool = False
    listed: bool = False
    read_again: tuple[int, int] = (0, 0)

    @property
    def exact(self) -> bool:
        """What arrives equals what was sent, but for the sign of zeros."""
        return self.lossless or self.contraction == 1.0


ALIGNED = 16
"""Where sections begin: at a multiple of so many bytes."""


def padded(size: int) -> int:
    """Round a size up to where the next section may begin."""
    return size + -size % ALIGNED


@dataclass(frozen=True)
class Recurrence:
    """A feedback as data, so that it can run in place and compressors can fuse it.

    momentum None: v = decay·v + gain·g.  Otherwise DGC (Lin et al. 2018, section 3.1):
    u = m·u + g; v += u, or with Nesterov u = m·(u + g); v += u + g.  mask: u is zeroed where v was
    sent.  C(v) is sent, and what was sent leaves v, stays in it, or, with decay -1, joins the
    estimate: v is then, before and after, what the receivers know, and g - v is what is encoded.
    state: the name of v.
    """

    momentum: float | None = None
    nesterov: bool = False
    mask: bool = False
    decay: float = 1.0
    gain: float = 1.0
    sent: Literal["leaves", "stays", "joins"] = "leaves"
    state: str = "residual"


Moments: TypeAlias = Mapping[str, Any]
"""What of an optimizer's work a feedback does, by the optimizer's own names: a momentum,
{"momentum": 0.9, "nesterov": False}, or Adam's moments, {"betas": (0.9, 0.999), "eps": 1e-8}."""
UpdateRule: TypeAlias = Literal["linear", "adaptive", "orthogonal"]
"""What an optimizer makes of a gradient: a multiple of it, or of its moving average (SGD); that
divided by how large gradients have been (AdamW); or a matrix that is orthogonal (Muon)."""


@dataclass(frozen=True)
class Evidence:
    """What a model learnt with a strategy: a row of benchmarks/convergence.

    sound: as much as by dense training, by the rule of that benchmark. optimizer: that trained.
    warmup: the part of its steps that were a warm-up's. begins: how they travelled, as the text of
    a warm-up; "": dense. turns: steps times density, which is how often an element was sent in the
    mean, where shorter runs have been seen to learn less; 0: nowhere. where: the study that the
    row is of.
    """

    strategy: str
    optimizer: str
    sound: bool
    task: str
    method: str
    warmup: float = 0.0
    begins: str = ""
    turns: float = 0.0
    where: str = "benchmarks/convergence"

    @property
    def row(self) -> str:
        """The study, the task and the method, to find the run by."""
        return f"{self.where}: {self.task}, {self.method}"


class Member(ABC):
    """One member of a family: a frozen dataclass with a name, whose fields are its parameters.

    evidence: runs from which follows with which optimizers it is sound.
    examples: as it is written in tables and benchmarks; (): by its name alone.
    varies: parameters of which a plan may choose other values, tensor by tensor, and which.
    """

    name: ClassVar[str]
    evidence: ClassVar[tuple[Evidence, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ()
    varies: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a member of this family alone: Collective.parse("zen"); StrategyError says what is
        wrong where."""
        made: Self = parse_member(cls, text)
        return made

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether it loses no more than another member of its class, so that it is sound where
        the other one is."""
        return self == other

    def __str__(self) -> str:
        given = [text for f in fields(self) if (text := _argument(self, f))]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(given)})" if given else self.name


def _argument(member: Any, f: Any) -> str:
    """One parameter as it is typed: bare if it is required, named if it is not the default."""
    value = getattr(member, f.name)
    shown = repr(value)
    if '"' not in shown:  # a text within a text keeps its own
        shown = shown.replace("'", '"')
    if f.default is MISSING:
        return shown
    return "" if value == f.default else f"{f.name}={shown}"
