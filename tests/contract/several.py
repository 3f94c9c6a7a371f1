"""Several parameters in one bucket on N ranks, in lockstep: states, skipped steps, damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError
from gradwire.runtime.codec import Memory
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import Rounds, StepInfo
from gradwire.trace import Trace

Shapes = Mapping[str, tuple[int, ...]]
Named = dict[str, Tensor]
"""Gradients or results of one rank, by parameter."""
Damage = tuple[int, int, Callable[[Any], Any]]
"""(move, counted from 0; receiving rank, or EVERYBODY; function that changes what arrives)."""
EVERYBODY = -1


class Several:
    """A job of N ranks, each with its memory and one context per bucket."""

    def __init__(
        self, text: str, shapes: Shapes, world: int, *, dtype: torch.dtype = torch.float32,
        exact_undo: bool = False, buckets: Sequence[Sequence[str]] | None = None,
        memories: Sequence[Memory] | None = None,
    ) -> None:  # fmt: skip
        self.shapes, self.world, self.dtype = dict(shapes), world, dtype
        self.memories: list[Memory] = list(memories or ({} for _ in range(world)))
        self.trace = Trace(world)
        name = str(dtype).removeprefix("torch.")
        strategy = Strategy.parse(text)
        self.contexts = [
            [
                make_context(
                    strategy, Bucket(tuple(Parameter(n, self.shapes[n], name) for n in names)),
                    rank, world, self.memories[rank], exact_undo=exact_undo,
                )
                for rank in range(world)
            ]
            for names in buckets or [list(shapes)]
        ]  # fmt: skip
        self.taken = 0

    def step(
        self, gradients: Sequence[Named], *, skipped: bool = False, clip_scale: float = 1.0,
        damage: Damage | None = None,
    ) -> list[Named]:  # fmt: skip
        """Takes one step over all buckets. Returns all ranks' results, in the parameters' shapes.

        PayloadError: what every rank reports that received damage, or was notified of it.
        """
        results = [
            {n: torch.full(shape, 7.0, dtype=self.dtype) for n, shape in self.shapes.items()}
            for _ in range(self.world)
        ]
        info = StepInfo(self.taken, clip_scale)
        self.trace = Trace(self.world)
        for contexts in self.contexts:
            rounds = []
            for context, mine, out in zip(contexts, gradients, results):
                names = context.bucket.names
                flat = [mine[n].to(self.dtype).reshape(-1).clone() for n in names]
                context.begin(flat, [out[n].view(-1) for n in names], info)
                moves = context.strategy.collective.rounds(context)
                rounds.append(_damaged(moves, damage) if _hits(damage, context.rank) else moves)
            drive(rounds, self.trace)
        said = [_end(context, skipped) for contexts in self.contexts for context in contexts]
        if any(said):
            raise PayloadError("; ".join(said))
        self.taken += 1
        return results

    def kept(self) -> list[dict[str, Named]]:
        """A copy of every rank's memory."""
        return [
            {n: {key: v.clone() for key, v in state.items()} for n, state in memory.items()}
            for memory in self.memories
        ]


def _end(context: BucketContext, skipped: bool) -> str:
    try:
        context.end(skipped)
    except PayloadError as error:
        return str(error)
    return ""


def _hits(damage: Damage | None, rank: int) -> bool:
    return damage is not None and damage[1] in (rank, EVERYBODY)


def _damaged(rounds: Rounds[None], damage: Damage | None) -> Rounds[None]:
    assert damage is not None
    at, _, change = damage
    number, move = 0, next(rounds)
    while True:
        arrived = yield move
        if number == at:
            arrived = change(_copy(arrived))
        number += 1
        try:
            move = rounds.send(arrived)
        except StopIteration:
            return


def _copy(arrived: Any) -> Any:
    """A copy of one message, or of one from each of some ranks."""
    if isinstance(arrived, dict):
        return {rank: message.clone() for rank, message in arrived.items()}
    return arrived.clone()


def drawn(shapes: Shapes, world: int, step: int = 0, scale: float = 1.0) -> list[Named]:
    """Normal gradients, different for every rank, step and parameter."""
    return [
        {
            n: scale * torch.randn(shape, generator=_dice(7919 * step + 97 * rank + p))
            for p, (n, shape) in enumerate(shapes.items())
        }
        for rank in range(world)
    ]


def _dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mean(gradients: Sequence[Named], name: str) -> Tensor:
    """The mean gradient of one parameter over the ranks, in fp64."""
    return torch.stack([mine[name].double() for mine in gradients]).mean(0)


def equal(one: Named, other: Named) -> bool:
    """Whether the two are equal bit for bit, but for the sign of zero; NaN equals NaN."""
    return one.keys() == other.keys() and all(
        torch.equal(v.nan_to_num(1e9), other[n].nan_to_num(1e9)) for n, v in one.items()
    )


def all_nan(results: Sequence[Named]) -> bool:
    return all(bool(v.isnan().all()) for mine in results for v in mine.values())
