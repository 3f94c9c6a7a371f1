"""The base of all members of the families: name, printing, and the small values they share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from gradwire.registry import parse_member


class Key(NamedTuple):
    """All that random numbers may depend on: never timing, never grouping.

    seed: that of `attach` or `lockstep`. step: the exchange's number. parameter: its name. rank:
    the rank that draws. Draws that must be alike on all ranks (randk's places) ignore it.
    """

    seed: int
    step: int
    parameter: str
    rank: int = 0


class StepInfo(NamedTuple):
    """What a feedback may know of the step. The gradient is multiplied by `clip_scale` first.

    shape: the parameter's shape, if x is all of the parameter; () if it is not known.
    """

    step: int = 0
    clip_scale: float = 1.0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claims:
    """What a compressor promises for one parameter of n elements; the contract suite measures it.

    sections: (dtype name, element count) of each part of the payload.
    elements: how many of the n elements a payload describes; None: all.
    sums: adding payloads number by number adds the tensors, so AllReduce may carry them.
    lossless: decode(encode(x)) == x, bit for bit.
    unbiased: the mean of decode(encode(x)) over keys is x.
    contraction: the c of |x - decode(encode(x))|² <= (1 - c)·|x|², for x whose largest magnitude
        is 2^-96 or more; None: no such promise.
    wants_feedback: elements that are not sent are lost without `ef`, `dgc` or another feedback.
    direction: payloads are signs without a scale: the result does not have the gradient's unit,
        so no parameter of the model may travel uncompressed beside it.
    fixed: the sections have the stated sizes. Otherwise there is one section of bytes, stated at
        its largest size; its first 8 bytes say how many bytes are used. What follows it in a
        message begins at the next multiple of 16 (`padded`).
    usual: the expected bytes of a payload without a fixed size and without entries, for normally
        distributed elements.
    entries: a payload is places and values, which `read` returns.
    listed: these places are int32 numbers, not a code.
    read_again: bytes of each fp32 element that are read a second time, as all must be seen before
        any can be encoded; and, with a feedback, before the residual is known.
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
        """Whether what arrives equals what was sent, but for the sign of zeros."""
        return self.lossless or self.contraction == 1.0


ALIGNED = 16
"""The alignment of sections in a message, in bytes."""


def padded(size: int) -> int:
    """Round a size up to where the next section may begin."""
    return size + -size % ALIGNED


@dataclass(frozen=True)
class Recurrence:
    """A feedback described as data, so that it can run in place and compressors can fuse it.

    momentum None: v = decay·v + gain·g.  Otherwise DGC (Lin et al. 2018, section 3.1):
    u = m·u + g; v += u, or with Nesterov u = m·(u + g); v += u + g.  mask: u is zeroed where v was
    sent.  C(v) is sent; then it leaves v, stays in it, or, with decay -1, joins the estimate: v
    is then what the receivers know, before and after the step, and g - v is encoded.
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
"""The part of an optimizer's work that a feedback does, in the optimizer's arguments: a momentum,
{"momentum": 0.9, "nesterov": False}, or Adam's moments, {"betas": (0.9, 0.999), "eps": 1e-8}."""
UpdateRule: TypeAlias = Literal["linear", "adaptive", "orthogonal"]
"""The step that an optimizer makes of a gradient: a multiple of it or of its moving average (SGD);
the average divided by how large gradients have been (AdamW); an orthogonal matrix (Muon)."""


@dataclass(frozen=True)
class Evidence:
    """What a model learnt with a strategy: a row of benchmarks/convergence.

    sound: it learnt as much as dense training, by that benchmark's rule. optimizer: its name, as
    "sgdm" for SGD with momentum. task, method: the row's. warmup: the fraction of steps that were
    a warm-up. begins: the warm-up's strategy, as text; "": dense, or by densities, one after the
    other for as many steps each. turns: steps times density, how often an element was sent on
    average, if shorter runs are known to learn less; else 0. where: the study to which the row
    belongs.
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
    densities: tuple[float, ...] = ()

    @property
    def first(self) -> str:
        """The strategy, or the densities, of the warm-up, and which steps it was; "" if there was
        none."""
        shown = f"'{self.begins or 'none | allreduce'}'"
        if self.densities:
            shown = f"densities of {', '.join(f'{100 * d:.3g}' for d in self.densities)} %"
        return f"{shown} in the first {self.part} of its steps" if self.warmup else ""

    def began_as(self, other: Evidence) -> bool:
        """Whether both runs began alike, be it for another part of their steps."""
        own, others = (self.begins, self.densities), (other.begins, other.densities)
        return own == others and bool(self.warmup) == bool(other.warmup)

    @property
    def part(self) -> str:
        """The fraction of steps that were a warm-up, in percent."""
        return f"{100 * self.warmup:.3g}%"

    @property
    def row(self) -> str:
        """The study, the task and the method, to find the run by."""
        return f"{self.where}: {self.task}, {self.method}"


class Member(ABC):
    """One member of a family: a frozen dataclass with a name, whose fields are its parameters.

    evidence: the runs that show with which optimizers it is sound; the first that applies decides,
        unless a later one that began alike learnt less.
    examples: how it is written in tables and benchmarks; (): its name alone.
    varies: the parameters that a plan may choose for each tensor, with their possible values.
    """

    name: ClassVar[str]
    evidence: ClassVar[tuple[Evidence, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ()
    varies: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a single member of this family: Collective.parse("zen"). The StrategyError of a
        wrong text says what is wrong, and where."""
        made: Self = parse_member(cls, text)
        return made

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether it loses no more than another member of its class, so that it is sound with
        every optimizer that the other is sound with."""
        return self == other

    def __str__(self) -> str:
        given = [text for f in fields(self) if (text := _argument(self, f))]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(given)})" if given else self.name


def _argument(member: Any, f: Any) -> str:
    """Returns a parameter as text: bare if required, named if it differs from its default."""
    value = getattr(member, f.name)
    shown = repr(value)
    if '"' not in shown:  # text that contains quotes keeps those that Python chose
        shown = shown.replace("'", '"')
    if f.default is MISSING:
        return shown
    return "" if value == f.default else f"{f.name}={shown}"
