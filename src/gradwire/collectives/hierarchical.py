"""hierarchical: dense sums inside each machine, then any other collective across machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.collectives._around import collective_of, take_claims
from gradwire.errors import StrategyError
from gradwire.pairs import Parts
from gradwire.strategy import Collective, Context, Feedback, Rounds


@dataclass(frozen=True)
class Hierarchical(Collective):
    """Sums inside machines first, dense; then any other collective across machines.

        rank l of machine m:  parts ══► owners       of my machine: mean of part l, fp32
                              all well? ──► all      of part l on other machines, 32 bytes
                              mean ══► mean          among these, compressed, as `outer` does
                              mean ══► all           of my machine: every part

    outer: the text of the collective across machines. Its demands on compressor and feedback
    hold here too. It gets the machine's mean, so density is measured after the sum, thresholds
    and residuals are in the gradient's own units, and fp16 overflows no earlier.
    per_node: ranks of a machine, L. 0: as `attach` finds them (host names, and torchrun's
    GROUP_RANK); `lockstep`, which finds no machines, puts all ranks on one.
    Inside, each rank sends 2(L-1)/L of the gradient, in its dtype; across, what `outer` sends of
    n/L fp32 elements. A part is whole rows of a matrix that has enough, else whole 64s. Selection
    and scales are per part, and the owner of the part keeps the residual.
    Sparse (COO) gradients: each rank owns random rows of its machine's mean, as `zen`'s owners
    do, and sends these across, if `outer` takes rows.
    One division in the machine, one across: as exact as one if L is a power of 2.
    Memory: the bucket, 2/L of it, and what `outer` takes for n/L elements, with its feedback.
    Source: Mikami et al. 2018, "Massively Distributed SGD", 2D-Torus; Shi et al. 2021, "Towards
    Scalable Distributed Training of Deep Learning on Public Cloud Clusters", HiTopKComm.
    """

    outer: str = "allgather"
    per_node: int = 0
    name: ClassVar[str] = "hierarchical"

    def __post_init__(self) -> None:
        number = isinstance(self.per_node, int) and not isinstance(self.per_node, bool)
        if not number or self.per_node < 0:
            raise StrategyError(
                "hierarchical's per_node must be the number of ranks on each machine, or 0 to use "
                f"what attach finds; got {self.per_node!r}. Use hierarchical(per_node=8), or "
                "leave it out."
            )
        outer = collective_of(self.name, self.outer)
        if outer.per_node is not None or outer.on_host:
            raise StrategyError(
                "hierarchical's outer must be a collective that neither looks at machines nor "
                f'works in host memory; got {self.outer!r}. Use hierarchical(outer="allgather"), '
                'or offload("hierarchical") for host memory.'
            )
        take_claims(self, outer, more=("takes_rows",))
        object.__setattr__(self, "across", outer)

    def check(self, parts: Parts) -> None:
        feedback = parts.feedback
        if feedback is not None and type(feedback).received is not Feedback.received:
            raise StrategyError(
                "hierarchical needs feedback that acts only on what is sent, as each rank owns a "
                f"part of the average; '{feedback}' acts on the whole average. Use ef or dgc, for "
                f"example '{parts.compressor}+ef | {self}'."
            )

    def rounds(self, ctx: Context) -> Rounds[None]:
        yield from ctx.through_machines(self.across)
