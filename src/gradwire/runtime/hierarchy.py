"""Sums inside machines first: every rank of one owns a part of its mean, which then crosses.

my gradients ─ part by part ─► (the machine) ─► mean of my part, fp32
                                 feedback, compression, any collective: (across machines)
my results   ◄─ every part ─── (the machine) ◄─ mean of my part over all machines

Both moves inside are those of `Shards`, uncompressed; what crosses is a `BucketContext` over the
parts, of as many ranks as there are machines. What is remembered belongs to the parts.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.errors import PayloadError
from gradwire.groups import Machines
from gradwire.layout.machine_sums import MachineSums
from gradwire.layout.message import HEADER_BYTES
from gradwire.layout.parts import cut, part_of
from gradwire.moves import AllGather, AllToAll, Move, over
from gradwire.runtime.context import BucketContext, Memory
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.message import Header, check_headers, check_size, header_of
from gradwire.runtime.shards import Shards
from gradwire.runtime.stages import StagedContext
from gradwire.strategy import Collective, Key, State, Strategy


def make_context(
    strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory,
    machines: Machines | None = None, **options: Any,
) -> BucketContext:  # fmt: skip
    """The context that a strategy asks for.

    machines: where ranks are, for a collective that asks. Without, as many consecutive ranks are
    a machine as it says, or all of them.
    """
    per_node, tasks = strategy.collective.per_node, strategy.collective.tasks
    if per_node is not None:
        machines = machines or Machines.even(world, per_node or world)
    if tasks is not None:
        return StagedContext(strategy, bucket, rank, world, memory, machines, **options)
    if per_node is None:
        return BucketContext(strategy, bucket, rank, world, memory, **options)
    assert machines is not None
    return HierarchicalContext(strategy, bucket, rank, machines, memory, **options)


class HierarchicalContext(BucketContext):
    """The local work of one rank on one bucket, where it is known who shares a machine."""

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, machines: Machines, memory: Memory,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(strategy, bucket, rank, machines.world, memory, **options)
        self._machines, self._options = machines, options
        self._sums: BucketMachineSums | None = None
        self.pieces = [cut(p, machines.per_node) for p in bucket.parameters]
        if machines.per_node > 1:
            local = machines.node(rank).ranks.index(rank)
            parts = zip(bucket.parameters, self.pieces)
            self.kept = Bucket(tuple(part_of(p, own, local) for p, own in parts))

    def through_machines(self, outer: Collective) -> Generator[Move, Any, None]:
        if self._machines.per_node == 1:
            yield from super().through_machines(outer)
            return
        sums = self._made(outer)
        sums.begin()
        yield from sums.rounds()

    def _made(self, outer: Collective) -> BucketMachineSums:
        if self._sums is None:
            self._sums = BucketMachineSums(self, self._machines, self._crossing(outer))
        return self._sums

    def _crossing(self, outer: Collective) -> BucketContext:
        """What this rank does across machines, on its parts; their states are in our memory."""
        strategy = Strategy(self.strategy.compressor, outer, self.strategy.feedback)
        memory = dict(zip(self.kept.names, self._states))
        ranks = self._machines.cross(self.rank).ranks
        rank, world = ranks.index(self.rank), len(ranks)
        return BucketContext(strategy, self.kept, rank, world, memory, **self._options)

    def end(self, skipped: bool) -> None:
        if self._sums is not None:
            self._sums.end(skipped or not self.finite)
        super().end(skipped)

    def _leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """What waits of the part of the machine's mean that this rank owns; and what other members
        keep."""
        per_node = self._machines.per_node
        if per_node == 1:
            return super()._leftover(i, n, state)
        # Not made yet where states were loaded, and not a step taken.
        sums = self._made(Collective.parse(self.strategy.collective.outer))  # type: ignore[attr-defined]
        own = sums.leftover(i, state)
        if own is None:
            return None
        local = self._machines.node(self.rank).ranks.index(self.rank)
        total = kernels.zeros(n, self._device)
        total[slice(*self.pieces[i].of_owner(local))].add_(own, alpha=per_node)
        return total


class BucketMachineSums(MachineSums):
    """The local work on one bucket of one rank, step after step.

    crossing: the context of its parts, among machines.
    """

    def __init__(
        self, context: HierarchicalContext, machines: Machines, crossing: BucketContext
    ) -> None:
        rank, device = context.rank, context._device
        self._context, self._crossing = context, crossing
        self._node, self._cross = machines.node(rank), machines.cross(rank)
        plain, local = Strategy.parse("none | alltoall"), self._node.ranks.index(rank)
        self._shards = Shards(
            plain, context.bucket, local, machines.per_node, device, context.pieces
        )
        self._encoders = [make_encoder(c, None) for c in self._shards.compressors()]
        self._status = torch.zeros(HEADER_BYTES, dtype=torch.uint8, device=device)
        self._header = Header(self._status)
        self._well = self._crossed = False

    def begin(self) -> None:
        """A new step."""
        self._well = self._crossed = False
        self._shards.damage = None

    def _scatter(self) -> AllToAll:
        context = self._context
        status = self._shards.begin(context.digest, context.info.step)
        work = zip(context.bucket.names, context.gradients, self._encoders, self._shards.sections)
        for name, x, encoder, sections in work:
            key = Key(context.seed, context.info.step, name, context.rank)
            encoder.encode(x, {}, sections, context.info, key, status)
        return replace(self._shards.outgoing(), group=self._node)

    def _average(self, arrived: Tensor) -> AllGather:
        digest, info = self._context.digest, self._context.info
        try:
            self._well = self._shards.average(arrived, digest, info, self._context.seed)
        except PayloadError as error:
            self._shards.damage = error
        damaged = self._shards.damage is not None
        self._header.write(digest, info.step, self._well, damaged)
        return AllGather(self._status, group=self._cross)

    def _all_well(self, told: Tensor) -> bool:
        context = self._context
        try:
            check_size(told, len(self._cross.ranks), HEADER_BYTES)
            self._well = check_headers(header_of(told), context.digest, context.info.step)
        except PayloadError as error:
            self._damaged_across(error)
        return self._well

    def _cross_over(self) -> Generator[Move, Any, None]:
        crossing, self._crossed = self._crossing, True
        means = self._shards.means
        info = self._context.info
        crossing.begin(means, means, info._replace(clip_scale=1.0))  # clipped already
        try:
            yield from over(self._cross, crossing.rounds())
            self._well = crossing.finite
        except PayloadError as error:
            self._damaged_across(error)

    def _damaged_across(self, error: PayloadError) -> None:
        """Remember damage, to be told inside the machine before this rank stops."""
        self._well = False
        if self._shards.damage is None:
            ranks = ", ".join(map(str, self._cross.ranks))
            self._shards.damage = PayloadError(
                f"across machines, where ranks {ranks} are counted from 0: {error}"
            )

    def _gather(self) -> AllGather:
        context = self._context
        none: list[State] = [{} for _ in context.bucket.names]
        digest, info, seed = context.digest, context.info, context.seed
        message = self._shards.answer(self._well, none, digest, info, seed)
        return AllGather(message, group=self._node)

    def _collect(self, messages: Tensor) -> None:
        context = self._context
        digest, info, seed = context.digest, context.info, context.seed
        if not self._shards.collect(messages, context.results, digest, info, seed):
            context.commit(finite=False)

    def leftover(self, i: int, state: State) -> Tensor | None:
        """What waits of the mean of this rank's part of parameter i."""
        return self._crossing._leftover(i, self._crossing.bucket.sizes[i], state)

    def end(self, skipped: bool) -> None:
        """After all buckets of the step. A part that crossed beside a spoiled one gives back."""
        if self._crossed:
            self._crossing.end(skipped)
