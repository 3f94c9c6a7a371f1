"""All local work of one rank on one bucket that collectives need, made of parts.

codec    compresses, writes averages, undoes            every strategy
streams  places and values, numbers that ranks tell     sparse collectives
shards   pieces and their owners                        alltoall, vote
detour   sums in machines, or a path of tasks           hierarchical, steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.errors import PayloadError, StrategyError
from gradwire.layout.pieces import Pieces
from gradwire.local import OWNERS_RESIDUAL, Local
from gradwire.moves import AllToAll
from gradwire.runtime.codec import Codec, Memory, Part
from gradwire.runtime.message import Inbox
from gradwire.runtime.row_streams import RowStreams
from gradwire.runtime.shards import Shards, remembers
from gradwire.runtime.streams import BucketStreams
from gradwire.strategy import Collective, Compressor, Context, Rounds, State, StepInfo, Strategy


class Detour(Part, Protocol):
    """A bucket's own route: through machines, or along a path. kept: parameters, in the shapes of
    their states. is_own: whether these are of this rank's gradients; else they are of means of
    several ranks', which some or all of them hold."""

    kept: Bucket
    is_own: bool

    def rounds(self) -> Rounds[None]:
        """Yields the moves, and does the local work between them."""

    def abandon(self) -> None:
        """Gives up a step that has failed."""

    def leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """Returns the residual of parameter i, of n elements, (n,); None if there is none."""


class BucketContext(Context):
    """The local work of one rank on one bucket, step after step. options: for `Codec`."""

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory,
        **options: Any,
    ) -> None:  # fmt: skip
        self.codec = codec = Codec(strategy, bucket, rank, world, memory, **options)
        self.strategy, self.bucket, self.rank, self.world = strategy, bucket, rank, world
        self.seed, self.ragged = codec.seed, codec.ragged
        self.has_rows = bucket.has_rows
        self.is_exact = strategy.feedback is None and all(claim.exact for claim in codec.claims)
        self._inbox = Inbox([codec.layout] * world, codec.ragged)
        self._casts = strategy.feedback is None and strategy.compressor.casts()
        # A single parameter that is sent uncompressed can be summed in place, without a copy.
        one_as_it_is = len(codec.claims) == 1 and codec.claims[0].lossless
        self._as_it_is = self._casts and one_as_it_is
        self._shards: Shards | None = None
        self._detour: Detour | None = None
        self._committed: Mapping[str, State] = {}
        self._sent: Mapping[str, Tensor] = {}
        self.memory: dict[str, Any] = {}

    def take(self, detour: Detour) -> None:
        """Uses this detour from now on."""
        self._detour = detour
        self.codec.parts.append(detour)

    @cached_property
    def streams(self) -> BucketStreams:  # type: ignore[override]
        """Places and values, for collectives that use them; made when first needed."""
        streams = (RowStreams if self.has_rows else BucketStreams)(self.codec)
        self.codec.parts.append(streams)
        return streams

    @property
    def kept(self) -> Bucket:
        """The parameters in the shapes that states have."""
        return self.bucket if self._detour is None else self._detour.kept

    @property
    def is_own(self) -> bool:
        """Whether states are of this rank's own gradients, all of them."""
        return self._detour is None or self._detour.is_own

    @property
    def finite(self) -> bool:
        try:
            return self.codec.finite
        except PayloadError:
            self.abandon()
            raise

    @property
    def results(self) -> Sequence[Tensor]:
        """The tensors that the step's averages are written to."""
        return self.codec.results

    @property
    def device(self) -> torch.device:
        """The device of this bucket's messages, unless a move says otherwise."""
        return self.codec.device

    @property
    def given(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The gradients and results that `begin` was given."""
        return self.codec.gradients, self.codec.results

    def begin(
        self, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Starts a step. Both: one contiguous 1-D tensor per parameter; they may be the same."""
        self.step, self._committed, self._sent = info.step, {}, {}
        self.codec.begin(gradients, results, info)

    def rounds(self) -> Rounds[None]:
        """Yields the step's moves: the feedback's, then the collective's."""
        feedback, collective = self.strategy.feedback, self.strategy.collective
        # Machines compress their sums in contexts of their own, where the feedback opens.
        opens_there = self._detour is not None and collective.across is not None
        if feedback is not None and not opens_there:
            goes_on = yield from feedback.opening(self.step, self.codec.brings, self.world)
            if not goes_on:
                for mean in self.codec.means:
                    mean.zero_()  # no gradients are exchanged in this step
                return
        moves: object = collective.rounds(self)
        if not isinstance(moves, Generator):
            raise StrategyError(
                "a collective's rounds must be a generator, which yields moves; that of "
                f"'{collective}' returned {moves!r:.80}. Write `arrived = yield AllGather(…)`."
            )
        yield from moves
        if not (self.codec.is_concluded or self._detour):
            raise StrategyError(
                f"a collective must leave averages with ctx; '{collective}' ended without any. "
                "Call ctx.accumulate, divide, collect, commit or streams.write with what arrived."
            )
        self.codec.look_at_means()

    # -- the collective's side -------------------------------------------------------------

    def message(self) -> Tensor:
        self.codec.compress()
        self.length = self.codec.length
        return self.codec.buffer

    def accumulate(self, messages: Tensor) -> None:
        codec, inbox = self.codec, self._inbox
        inbox.check(messages)
        codec.verdict.hear(inbox.headers(messages))
        codec.conclude_sums(
            lambda word: codec.average(inbox.payloads(messages), word, codec.known)
        )

    def numbers(self) -> Tensor:
        codec = self.codec
        if self._casts and codec.info.clip_scale == 1.0:
            is_there = self._as_it_is and codec.gradients is codec.results
            return codec.gradients[0] if is_there else codec.cast()
        codec.compress()
        own = codec.numbers
        if self.strategy.feedback is not None:  # the sum must not overwrite what undoing reads
            numbers = codec.scratch.room("numbers", own.numel(), own.dtype, codec.device)
            own = numbers.copy_(own)
        # One parameter becomes NaN, not all: the padding between parameters must stay zero.
        kernels.spoil_if(codec.header.status, own[codec.layout.longest])
        return own

    def divide(self, total: Tensor) -> None:
        codec, inbox = self.codec, self._inbox
        kernels.flag_non_finite(total, codec.verdict.word)
        known = None if self._as_it_is else codec.known  # a gradient is another tensor every step
        codec.conclude_sums(lambda word: codec.average(inbox.values(total), word, known))

    def scatter(self, means: Compressor | None = None) -> AllToAll:
        codec = self.codec
        if self._shards is None:
            self._shards = Shards(
                codec, self.strategy.compressor, self.rank, self.world, means=means,
                states=codec.states if remembers(self.strategy) else None,
            )  # fmt: skip
            codec.compressors = self._shards.compressors()
            codec.parts.append(self._shards)
        codec.encode(self._shards.sections, self._shards.open())
        return self._shards.outgoing()

    def reduce(self, arrived: Tensor) -> Tensor:
        assert self._shards is not None, "reduce comes after scatter"
        self._shards.average(arrived)
        return self._shards.answer()

    def collect(self, messages: Tensor) -> None:
        assert self._shards is not None, "collect comes after scatter"
        codec, shards = self.codec, self._shards
        shards.hear(messages)
        codec.conclude_sums(
            lambda word: shards.collect(messages, codec.means, word), shards.means_by
        )

    def room(self, name: str, n: int) -> Tensor:
        return self.codec.scratch.room(name, n, torch.float32, self.codec.device)

    def locals(self, uses: int = 1) -> Sequence[Local]:
        return self.codec.locals()

    def commit(
        self, status: Tensor, states: Mapping[str, State], sent: Mapping[str, Tensor] | None = None
    ) -> None:
        self.codec.leave(status)
        self._committed, self._sent = states, sent or {}

    def through_machines(self, outer: Collective) -> Rounds[None]:
        if self._detour is None:
            return super().through_machines(outer)
        return self._detour.rounds()

    def along_path(self) -> Rounds[None]:
        assert self._detour is not None, "asked of paths only"
        return self._detour.rounds()

    # -- the runtime's side ----------------------------------------------------------------

    def abandon(self) -> None:
        """Gives up a failed step, so that no gradient of this rank alone passes for an average."""
        self.codec.abandon()
        if self._detour is not None:
            self._detour.abandon()

    def end(self, skipped: bool) -> None:
        """Ends the step, after all its buckets. skipped: another bucket was not finite."""
        finite = self.finite
        named = zip(self.bucket.names, self.codec.states, self.codec.results)
        for name, state, result in named if finite and self._committed else ():
            state.update(self._committed.get(name, {}))
            if skipped and name in self._committed:
                back = self._sent.get(name, result)
                state["residual"].add_(back.view_as(state["residual"]))
                kernels.fill_nan(result)
        self._committed, self._sent = {}, {}
        self.codec.end(skipped)

    def given_back(self) -> list[str]:
        """Returns the names of the parameters whose gradients are in this rank's state after a
        skipped step: in a residual, or in a momentum that is sent itself. Call after `end`."""
        feedback = self.strategy.feedback
        if feedback is None:  # a collective that keeps residuals may keep them of some only
            named = zip(self.bucket.names, self.codec.states)
            return [name for name, state in named if self.finite and "residual" in state]
        rule = feedback.recurrence()
        forgets = feedback.sends_all or (rule is not None and rule.sent == "joins")
        return list(self.bucket.names) if self.finite and not forgets else []

    def leftovers(self) -> dict[str, Tensor]:
        """Returns what is left in this rank's residuals, by parameter, flat: what the rank must
        add to a gradient to send it. Call between steps; states stay as they are."""
        of = self.leftover if self._detour is None else self._detour.leftover
        work = enumerate(zip(self.bucket.sizes, self.codec.states))
        found = (of(i, n, state) for i, (n, state) in work)
        return {name: x for name, x in zip(self.bucket.names, found) if x is not None}

    def leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """Returns the residual of parameter i, of n elements, in this state; None if none."""
        total = state["residual"].reshape(-1).clone() if "residual" in state else None
        if OWNERS_RESIDUAL in state:
            total = total if total is not None else kernels.zeros(n, self.codec.device)
            p = self.bucket.parameters[i]
            begin, end = Pieces.of(p.name, n, self.world).of_owner(self.rank)
            own = state[OWNERS_RESIDUAL].view(end - begin)
            total[begin:end].add_(own, alpha=self.world)  # the owner's residual is of the mean
        return total

    def residual_norm(self, waiting: Callable[[str, Tensor], Tensor] | None = None) -> float:
        """Returns the 2-norm of this bucket's residuals. waiting: computes a residual from the
        parameter's name and the tensor in its state, if that holds something else."""
        states = zip(self.bucket.names, self.codec.states)
        named = [(n, s["residual"]) for n, s in states if "residual" in s]
        kept = [v if waiting is None else waiting(n, v) for n, v in named]
        return math.sqrt(sum(float(torch.dot(v.view(-1), v.view(-1))) for v in kept))
