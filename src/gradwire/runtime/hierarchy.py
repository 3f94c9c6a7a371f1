"""Sums inside machines first: every rank owns a part of its machine's mean, which then crosses.

my gradients ─ part by part ─► (the machine) ─► mean of my part, fp32
                                 feedback, compression, any collective: (across machines)
my results   ◄─ every part ─── (the machine) ◄─ mean of my part over all machines

If a machine was not well, NaN crosses, so that no host must wait to know whether it does. Both
moves inside are those of `Shards`, uncompressed. A `BucketContext` over the parts, with as many
ranks as there are machines, exchanges them across. States belong to the parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.groups import Machines
from gradwire.layout.machine_sums import MachineSums
from gradwire.layout.message import HEADER_BYTES
from gradwire.moves import AllToAll
from gradwire.runtime.codec import Codec, Outcome
from gradwire.runtime.context import BucketContext
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.message import Header, check_size, header_of
from gradwire.runtime.shards import Shards
from gradwire.strategy import Collective, Compressor, Rounds, State, Strategy


class BucketMachineSums(MachineSums):
    """The local work on one bucket of one rank, step after step.

    kept: this rank's parts of the parameters, whose states it keeps. options: for the context in
    which these parts cross machines, by `across`.
    """

    def __init__(
        self, codec: Codec, machines: Machines, across: Collective, **options: Any
    ) -> None:
        super().__init__(codec.bucket, codec.rank, machines)
        self._codec, strategy, ranks = codec, codec.strategy, self._cross.ranks
        self.is_own = self._per_node == 1
        self._crossing = BucketContext(
            Strategy(strategy.compressor, across, strategy.feedback), self.kept,
            ranks.index(codec.rank), len(ranks), dict(zip(self.kept.names, codec.states)),
            lost=codec.verdict.word, **options,
        )  # fmt: skip
        plain: Compressor = Compressor.parse("none")
        self._verdict = codec.verdict
        self._shards = Shards(codec, plain, self._local, self._per_node, self.pieces)
        self._encoders = [make_encoder(c, None) for c in self._shards.compressors()]
        self._status = torch.zeros(HEADER_BYTES, dtype=torch.uint8, device=codec.device)
        self._header = Header(self._status)
        self._crossed = False
        others = ", ".join(map(str, ranks))
        self._where = f"across machines, among ranks {others}, which are numbered from 0 here"

    def begin(self) -> None:
        """Begins a new step."""
        self._crossed = False
        self._shards.begin()

    def undo(self) -> None:
        """Does nothing: `end` undoes what crossed in a spoiled step."""

    def _scatter(self) -> AllToAll:
        status = self._shards.open()
        work = zip(self._encoders, self._codec.brings(), self._shards.sections)
        kernels.together((encoder.work(own, to, status) for encoder, own, to in work), status)
        return self._shards.outgoing()

    def _average(self, arrived: Tensor) -> Tensor:
        codec, verdict = self._codec, self._verdict
        try:
            self._shards.average(arrived)
        except PayloadError as error:
            verdict.refuse(error)
        self._header.write(codec.digest, codec.info.step)
        self._header.status.copy_(verdict.word)
        return self._status

    def _cross_over(self, told: Tensor) -> Rounds[None]:
        codec, verdict, crossing = self._codec, self._verdict, self._crossing
        try:
            check_size(told, len(self._cross.ranks), HEADER_BYTES)
            verdict.hear(header_of(told), self._where)
        except PayloadError as error:
            self._damaged_across(error)
        means, self._crossed = self._shards.means, True
        self._shards.spoil_means()
        crossing.begin(means, means, codec.info._replace(clip_scale=1.0))  # clipped already
        try:
            yield from crossing.rounds()
        except PayloadError as error:
            self._damaged_across(error)
        verdict.join(crossing.codec.verdict, self._where)

    def _damaged_across(self, error: PayloadError) -> None:
        """Remembers damage, so that the machine's ranks are notified before this rank stops."""
        self._verdict.refuse(PayloadError(f"{self._where}: {error}"))

    def _gather(self) -> Tensor:
        return self._shards.answer()

    def _collect(self, messages: Tensor) -> None:
        codec, shards = self._codec, self._shards
        shards.hear(messages)
        codec.conclude_sums(
            lambda word: shards.collect(messages, codec.means, word), shards.means_by
        )

    def leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """Returns the residual of this rank's part of the machine's mean, as a gradient of this
        rank, (n,); None if there is none."""
        own = self._crossing.leftover(i, self._crossing.bucket.sizes[i], state)
        if own is None:
            return None
        total = kernels.zeros(n, self._codec.device)
        total[slice(*self.pieces[i].of_owner(self._local))].add_(own, alpha=self._per_node)
        return total

    def abandon(self) -> None:
        """Gives up a failed step, and the exchange across machines with it."""
        if self._crossed:
            self._crossing.abandon()

    def end(self, outcome: Outcome) -> None:
        """Ends the step, after all its buckets. A part that crossed in vain is given back."""
        if self._crossed:
            self._crossing.end(skipped=outcome != "kept")
