"""Compares the weights of all ranks from time to time: a difference would stay unseen for good.

    every CHECK_EVERY exchanges:  sum of the bits of each parameter ──► all ranks ──► equal?
                                                     rounding apart ◄── no ──► an error on all

Averages are equal on all ranks to the bit, so weights are, too, unless a message or memory was
damaged on one rank, or a rank stepped otherwise than the others.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradwire.agreement import rate_of
from gradwire.errors import PayloadError
from gradwire.moves import AllGather, Broadcast
from gradwire.streams import sealed, unsealed
from gradwire.training.session import Session
from gradwire.training.trainable import shards_of

CHECK_EVERY = 100
"""Exchanges from one comparison to the next. One reads the weights once, and gathers 8 bytes for
each parameter, and a check."""

SOON = 3
"""Exchanges from a change of ranks to the first comparison: two steps by rates of each rank."""

ROUNDING = 1e-4
"""Ranks whose weights differ by less than this fraction of the largest get rank 0's. Processors of
two kinds may round the optimizer's step otherwise, by 1e-7 in each; 16-bit weights, whose steps
are larger than this, by two steps of their format."""


_MAY_DIFFER = "If ranks shall differ, use attach(check_every=None)."


class SameWeights:
    """Compares the weights of one attached model, on all ranks at the same steps."""

    def __init__(
        self, session: Session, every: int, optimizers: Callable[[], Sequence[object]] = tuple
    ) -> None:
        self._session, self._every, self._warned = session, every, False
        self._optimizers = optimizers
        self._equal_at = self._also_at = session.step

    def look_soon(self) -> None:
        """Compare the weights a few exchanges from now, too, as after a change of ranks: schedules
        of one that came differ in their first steps. All ranks must call it at the same step."""
        self._also_at = self._session.step + SOON

    @torch.no_grad()
    def look(self) -> None:
        """Compare the weights if it is time to. Collective, when all averages are in place.

        Raises:
            PayloadError: they differ by more than rounding, or the ranks' learning rates do; on
                every rank.
        """
        session = self._session
        if session.step % self._every and session.step != self._also_at:
            return
        weights = {name: p.detach() for name, p in shards_of(session.parameters).items()}
        everybody = self._gathered(torch.stack([bits_of(x) for x in weights.values()]))
        if all(row == everybody[0] for row in everybody):
            self._equal_at = session.step
            return
        self._refuse_other_rates()
        apart, is_rounding, name = self._made_equal(weights, everybody)
        told = (
            f"all ranks must hold the same weights; before step {session.step} those of '{name}' "
            f"on {self._odd(everybody)} differ, by {apart:.2g} of the largest. "
        )
        if not is_rounding:
            raise PayloadError(
                f"{told}A message or memory was damaged, or a rank stepped otherwise than others, "
                "or its forward changed them, as nn.Embedding(max_norm=…) does. "
                f"{self._go_back()}; if it comes back, look at that rank's machine. {_MAY_DIFFER}"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{told}That is rounding, as between processors of two kinds: all ranks now have "
                "rank 0's weights, and will have each time.",
                stacklevel=2,
            )

    def _gathered(self, own: Tensor) -> list[list[int]]:
        """Returns every rank's whole numbers. Collective. They have a check, as more moves follow
        where they differ: a rank for which they differ alone would make these alone."""
        arrived = self._session.moved(AllGather(sealed(own.view(torch.uint8))))
        raw = unsealed(arrived, own.nbytes, range(self._session.world))
        everybody: list[list[int]] = raw.view(torch.int64).tolist()
        return everybody

    def _go_back(self) -> str:
        equal_at = max(self._equal_at, self._session.began_at)
        return (
            f"Load a checkpoint of step {equal_at} or before on all ranks, as weights were equal "
            "then"
        )

    def _refuse_other_rates(self) -> None:
        """Raise PayloadError if learning rates differ between ranks, on all of them. Collective.
        Rates that a rank does not know, as of another's part, are not compared."""
        session, rates = self._session, dict[int, float]()
        for optimizer in self._optimizers():
            for group in optimizer.param_groups if isinstance(optimizer, Optimizer) else ():
                rate = rate_of(group)
                if rate is not None:
                    rates |= dict.fromkeys(map(id, group["params"]), rate)
        own = [rates.get(id(p), -1.0) for p in session.parameters.values()]
        room = torch.tensor(own, device=session.device, dtype=torch.float64)
        everybody = session.moved(AllGather(room)).tolist()
        names = dist.get_process_group_ranks(session.performers[0].group)
        for name, of_ranks in zip(session.parameters, zip(*everybody)):
            known = {rate: rank for rank, rate in zip(names, of_ranks) if rate >= 0.0}
            if len(known) > 1:
                facts = " and ".join(f"{rate} on rank {rank}" for rate, rank in known.items())
                raise PayloadError(
                    f"all ranks must step alike; before step {session.step} the learning rate of "
                    f"'{name}' is {facts}, and their weights differ. Set a rate that follows a "
                    "schedule by handle.step, which is the same on all ranks. "
                    f"{self._go_back()}. {_MAY_DIFFER}"
                )

    def _odd(self, everybody: list[list[int]]) -> str:
        """Names the ranks that do not have what most ranks have, or rank 0 where none are most."""
        names = dist.get_process_group_ranks(self._session.performers[0].group)
        common, _ = Counter(map(tuple, everybody)).most_common(1)[0]
        odd = [f"{names[r]}" for r, row in enumerate(everybody) if tuple(row) != common]
        return f"rank {', '.join(odd)}"

    def _made_equal(
        self, weights: dict[str, Tensor], everybody: list[list[int]]
    ) -> tuple[float, bool, str]:
        """Compares the parameters that differ with rank 0's, and sets them to these if all are no
        more than rounding apart. Returns the distance of the one that is farthest for its format,
        on any rank; whether it is rounding; and its name."""
        differ = [
            name for name, bits in zip(weights, zip(*everybody)) if any(b != bits[0] for b in bits)
        ]
        firsts, far = dict[str, Tensor](), list[Tensor]()
        for name in differ:
            own = weights[name].reshape(-1)
            firsts[name] = self._session.moved(Broadcast(own.clone(), 0, self._session.rank))
            far.append(_apart(own, firsts[name]))
        most = self._session.moved(AllGather(torch.stack(far))).amax(0).tolist()
        share = [apart / _rounding(weights[name].dtype) for name, apart in zip(differ, most)]
        worst = share.index(max(share))
        if share[worst] <= 1.0:
            for name, first in firsts.items():
                weights[name].copy_(first.view_as(weights[name]))
        return most[worst], share[worst] <= 1.0, differ[worst]


def _rounding(dtype: torch.dtype) -> float:
    """Returns the fraction of the largest weight by which rounding may part weights."""
    return max(ROUNDING, 2.0 * torch.finfo(dtype).eps)


def _apart(own: Tensor, first: Tensor) -> Tensor:
    """Returns the largest difference as a fraction of the largest weight; inf if one of the two is
    not finite where the other is. NaN is equal to NaN, whatever its bits."""
    alike = (own == first) | (own.isnan() & first.isnan())
    difference = (own - first).abs().masked_fill(alike, 0.0).max().to(torch.float32)
    largest = first.abs().nan_to_num(0.0, torch.inf).max().to(torch.float32)
    least = torch.finfo(torch.float32).tiny
    return (difference / largest.clamp_min(least)).nan_to_num(torch.inf, torch.inf)


def bits_of(x: Tensor) -> Tensor:
    """Returns the sum of a tensor's memory as whole numbers, int64, modulo 2^64, on its device:
    one flipped bit always changes it."""
    raw = x.contiguous().view(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    words = raw[:whole] if raw.storage_offset() % 8 == 0 else raw[:whole].clone()
    return words.view(torch.int64).sum() + raw[whole:].sum(dtype=torch.int64)
