"""offload: all work in the host's memory, by CPUs; the device only computes gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.collectives._around import collective_of, take_claims
from gradwire.errors import StrategyError
from gradwire.pairs import Parts
from gradwire.strategy import Collective, Context, Rounds


@dataclass(frozen=True)
class Offload(Collective):
    """Copies gradients to the host's memory, where CPUs do all work, and averages back.

        device   ── backward ──► gradient ══╗                             ╔══► average
        host                                ╚══► encode ┄ outer ┄ decode ══╝

    outer: the text of a collective, which moves data in the host's memory over Gloo, in a group
    that has it (`init_process_group("cpu:gloo,cuda:nccl")` has both).
    Results equal those without `offload`, bit for bit. Residuals and moments are in the host's
    memory too, none of them on the device. On CPUs it is `outer` alone.
    It pays if the device's memory is short, if its launches take longer than the work (many small
    parameters), or if it has no kernels. Copies are in the gradients' own dtype.
    Memory: the bucket, pinned, and what `outer` takes, on the host; on the device a copy of the
    weights, if ranks compute at their own views.
    Source: the choice of GPU or CPU in Wang et al., "ByteComp" (EuroSys'23 as Espresso), 4.2.
    """

    outer: str = "allgather"
    name: ClassVar[str] = "offload"
    inner: ClassVar[Collective]  # the collective of the text `outer`

    def __post_init__(self) -> None:
        outer = collective_of(self.name, self.outer)
        if outer.tasks is not None or outer.on_host:
            raise StrategyError(
                "offload's outer must be a collective that does not itself choose where work is "
                f'done; got {self.outer!r}. Use offload("allgather"), or another.'
            )
        take_claims(self, outer, ("per_node", "across", "takes_float64"))
        object.__setattr__(self, "on_host", True)
        object.__setattr__(self, "inner", outer)

    def check(self, parts: Parts) -> None:
        self.inner.check(parts)

    def rounds(self, ctx: Context) -> Rounds[None]:
        yield from self.inner.rounds(ctx)
