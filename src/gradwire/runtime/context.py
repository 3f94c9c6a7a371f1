"""All local work on one bucket: compress, check, sum, average; and take it back if a step fails.

begin ──► message / numbers ──► (the network) ──► accumulate / divide ──► end
             state updated                          results written        skipped: given back
                                                    or, if a rank saw inf or NaN:
                                                    NaN everywhere, state undone
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket, digest
from gradwire.errors import PayloadError
from gradwire.layout.message import HEADER_BYTES, Layout
from gradwire.layout.pieces import Pieces
from gradwire.local import OWNERS_RESIDUAL, RIGHT_FACTOR, Local, Own
from gradwire.member import padded
from gradwire.moves import AllToAll, Move
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.inbox import Inbox
from gradwire.runtime.message import Header, of_parameter, used
from gradwire.runtime.shards import Shards
from gradwire.runtime.streams import BucketStreams
from gradwire.strategy import (
    Compressor,
    Context,
    Encoder,
    Feedback,
    Key,
    Sections,
    State,
    StepInfo,
    Strategy,
)
from gradwire.streams import Stream

Memory: TypeAlias = "dict[str, State]"
"""State by parameter name, then by the feedback's names; survives regrouping and resume."""


class BucketContext(Context):
    """The local work of one rank on one bucket, step after step.

    The message's buffer is made once, when first needed. `memory` is shared by all buckets of a
    model. exact_undo keeps a copy of the state during a step, so that undoing a non-finite step
    is exact to the bit instead of to rounding. scratch: shared by the buckets of one lane.
    """

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory, *,
        device: torch.device | str = "cpu", seed: int = 0, exact_undo: bool = False,
        scratch: kernels.Scratch | None = None,
    ) -> None:  # fmt: skip
        self.strategy, self.bucket, self.rank, self.world = strategy, bucket, rank, world
        self.kept = bucket  # the shapes that states have
        self.seed, self.exact_undo = seed, exact_undo
        claims = [strategy.compressor.claims(n, bucket.dtype) for n in bucket.sizes]
        self._claims = claims
        self.ragged = not all(claim.fixed for claim in claims)
        self.is_exact = strategy.feedback is None and all(claim.exact for claim in claims)
        self.layout = Layout.of(claims)
        self._names = bucket.names
        self._counts = [claim.sections[-1][1] for claim in claims]  # of numbers, where they add up
        self.digest = digest(str(strategy.expand()), bucket.parameters, world)
        self._inbox = Inbox(self.layout, world, self.digest, self.ragged)
        self._states: list[State] = [memory.setdefault(name, {}) for name in bucket.names]
        self._device, self._scratch = torch.device(device), scratch or kernels.Scratch()
        # What one parameter sends as it is can be summed where it lies, without a copy of it.
        self._as_it_is = strategy.feedback is None and len(claims) == 1 and claims[0].lossless
        self._shards: Shards | None = None
        self.streams: BucketStreams = BucketStreams(
            bucket, world, digest(self.digest, seed), self._device,
            any(claim.listed for claim in claims), self._states,
            self._is_well_compressed, self._own_entries, lambda: self._means, self._spoil,
            self._give_back_entries,
        )  # fmt: skip
        self._compressed = False
        self.memory: dict[str, Any] = {}
        self._given_back: list[tuple[Tensor, Tensor, Tensor]] = []  # and how to take it again
        self._own: Sequence[Sections] = ()  # what this step's encoders wrote
        self._snapshots: list[dict[str, Tensor]] = []
        self._committed = False
        self._exact = kernels.Scratch()  # the bucket's own: needed until the step ends
        self.finite = True

    @cached_property
    def _buffer(self) -> Tensor:
        return torch.zeros(self.layout.bytes, dtype=torch.uint8, device=self._device)

    @cached_property
    def _header(self) -> Header:
        return Header(self._buffer)

    @cached_property
    def _sections(self) -> list[tuple[Tensor, ...]]:
        return self.layout.views(self._buffer)

    @cached_property
    def _encoders(self) -> list[Encoder]:
        one = self.strategy.compressor
        compressors = self._shards.compressors() if self._shards else [one] * len(self._names)
        return [make_encoder(compressor, self.strategy.feedback) for compressor in compressors]

    @property
    def _at_work(self) -> Sequence[Encoder]:
        """The encoders that this step went through; none in others' turn, when it may not be
        known yet of which pieces they are."""
        return self._encoders if self._own else ()

    def begin(
        self, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Start a step. Both: one contiguous 1-D tensor per parameter; they may be the same."""
        self.gradients, self.results, self.info = gradients, results, info
        self.finite, self._committed, self._own = True, False, ()
        self._given_back, self._compressed, self.step = [], False, info.step
        self.streams.begin(info.step)

    def rounds(self) -> Generator[Move, Any, None]:
        """The step's moves: the feedback's, and the collective's."""
        feedback, collective = self.strategy.feedback, self.strategy.collective
        # Machines compress what they have summed, in contexts of their own, which open there.
        if feedback is not None and collective.per_node is None:
            goes_on = yield from feedback.opening(self.info.step, self._brings, self.world)
            if not goes_on:
                for mean in self._means:
                    mean.zero_()  # what arrives is no step
                return
        yield from collective.rounds(self)

    def _brings(self) -> list[Own]:
        work = enumerate(zip(self.gradients, self._states))
        return [Own(x, state, self._info(i), self._key(i)) for i, (x, state) in work]

    # -- the collective's side -------------------------------------------------------------

    def message(self) -> Tensor:
        self._compress()
        return self._buffer

    def _compress(self) -> None:
        """Once in a step, however often a collective asks; the header's flags tell how it went."""
        if self._compressed:
            return
        self._compressed = True
        self._header.write(self.digest, self.info.step)
        if self.ragged:
            self._compress_ragged()
        else:
            self._encode(self._sections, self._header.status)

    def _is_well_compressed(self) -> bool:
        """Compress, and read the word: who asks needs counts on the host, too."""
        self._compress()
        return not kernels.is_raised(self._header.status)

    def _compress_ragged(self) -> None:
        """Payload after payload, each where the one before it ended: lengths are read on the
        host, and so is the word."""
        at, own, status = HEADER_BYTES, [], self._header.status
        self._snapshot()
        for i, (capacity,) in enumerate(self.layout.sections):
            section = self._buffer[at : at + capacity[2] - capacity[1]]
            own.append((section,))
            self._encode_one(i, own[-1], status)
            # A spoiled step sends no payloads, but undoing it reads them.
            bad = kernels.is_raised(status)
            at += padded(capacity[2] - capacity[1] if bad else used(section))
        self._own, length = own, HEADER_BYTES if kernels.is_raised(status) else at
        self.length = torch.tensor([length], device=self._device)

    def numbers(self) -> Tensor:
        if self._as_it_is and self.gradients is self.results and self.info.clip_scale == 1.0:
            return self.gradients[0]
        self._compress()
        own = self.layout.numbers(self._buffer)
        if self.strategy.feedback is not None:  # the sum must not overwrite what may go back
            numbers = self._scratch.room("numbers", own.numel(), own.dtype, self._device)
            own = numbers.copy_(own)
        kernels.spoil_if(self._header.status, own)
        return own

    def accumulate(self, messages: Tensor) -> None:
        payloads = self._inbox.read(messages, self.info.step)
        return self._spoil() if payloads is None else self._write_results(payloads)

    def divide(self, total: Tensor) -> None:
        if not kernels.is_finite(total):
            return self._spoil()
        parts = torch.split(total, self._counts)
        self._write_results([[(part,)] for part in parts])
        return None

    def scatter(self, means: Compressor | None = None) -> AllToAll:
        if self._shards is None:
            self._shards = Shards(
                self.strategy, self.bucket, self.rank, self.world, self._device, means=means
            )
        self._encode(self._shards.sections, self._shards.begin(self.digest, self.info.step))
        return self._shards.outgoing()

    def reduce(self, arrived: Tensor) -> Tensor:
        assert self._shards is not None, "reduce comes after scatter"
        return self._shards.reduce(arrived, self._states, self.digest, self.info, self.seed)

    def collect(self, messages: Tensor) -> None:
        assert self._shards is not None, "collect comes after scatter"
        if not self._shards.collect(messages, self._means, self.digest, self.info, self.seed):
            return self._spoil()
        return None

    def _own_entries(self, i: int) -> tuple[Tensor, Tensor]:
        return self.strategy.compressor.read(self._own[i], self.bucket.sizes[i])

    def _give_back_entries(self, i: int, lost: Stream) -> None:
        """Return entries to the memory that they left or joined, and out of it again if the step
        is skipped."""
        feedback, state = self.strategy.feedback, self._states[i]
        if feedback is None or not feedback.makes_good:
            return
        rule = feedback.recurrence()
        v, values = state[rule.state if rule else "residual"], lost.values.float()
        sign = -1.0 if rule and rule.sent == "joins" else 1.0
        kernels.add(v, lost.places, values, sign)
        self._given_back.append((v, lost.places, values * -sign))

    def room(self, name: str, n: int) -> Tensor:
        return self._scratch.room(name, n, torch.float32, self._device)

    def locals(self) -> Sequence[Local]:
        self._snapshot()
        scale = self.info.clip_scale
        shapes = (p.shape for p in self.bucket.parameters)
        work = zip(self._names, shapes, self.gradients, self.results, self._states)
        return [
            Local(name, shape, x if scale == 1.0 else x.float() * scale, result, state)
            for name, shape, x, result, state in work
        ]

    def commit(self, finite: bool) -> None:
        if not finite:
            self._spoil()
        self._committed = finite

    # -- the runtime's side ----------------------------------------------------------------

    def end(self, skipped: bool) -> None:
        """After all buckets of the step. skipped: another bucket was not finite."""
        if not skipped and self.finite:  # what a skipped step brought is not remembered
            self._remember_results()
            self.streams.remembered.commit()
        if skipped and self.finite and self.strategy.feedback is not None:
            for v, places, values in self._given_back:  # it is in what is given back next
                kernels.add(v, places, values, 1.0)
            for encoder, state, sections in zip(self._at_work, self._states, self._own):
                encoder.give_back(state, sections)
            if self._shards is not None:  # the owner's sums are in what is given back
                self._shards.undo(self._states)
        if skipped and self.finite and self._committed:
            for state, result in zip(self._states, self.results):
                if RIGHT_FACTOR in state:
                    state["residual"].add_(result.view_as(state["residual"]))
                    kernels.fill_nan(result)
        if skipped and self.strategy.feedback is not None:
            for result in self.results:  # given back: a step with it would count it twice
                kernels.fill_nan(result)
        self._snapshots = []
        self.gradients = self.results = ()  # so that zero_grad(set_to_none=True) frees them
        for encoder in self._at_work:
            encoder.release()
        if self._shards is not None:
            self._shards.release()

    def leftovers(self) -> dict[str, Tensor]:
        """What waits in residuals here, by parameter, in its shape, flat: what this rank must add
        to a gradient for it to be sent. Between steps; states stay as they are."""
        work = enumerate(zip(self.bucket.sizes, self._states))
        found = (self._leftover(i, n, state) for i, (n, state) in work)
        return {name: x for name, x in zip(self._names, found) if x is not None}

    def _leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """What waits of parameter i for no strategy in force."""
        total = state["residual"].reshape(-1).clone() if "residual" in state else None
        if OWNERS_RESIDUAL in state:
            total = total if total is not None else kernels.zeros(n, self._device)
            p = self.bucket.parameters[i]
            begin, end = Pieces.of(p.name, n, self.world).of_owner(self.rank)
            own = state[OWNERS_RESIDUAL].view(end - begin)
            total[begin:end].add_(own, alpha=self.world)  # it is of the mean
        return total

    def residual_norm(self, waiting: Callable[[str, Tensor], Tensor] | None = None) -> float:
        """The 2-norm of all that waits in this bucket's residuals. waiting: what their memory
        says of a parameter, where that is something else."""
        named = [(n, s["residual"]) for n, s in zip(self._names, self._states) if "residual" in s]
        kept = [v if waiting is None else waiting(n, v) for n, v in named]
        return math.sqrt(sum(float(torch.dot(v.view(-1), v.view(-1))) for v in kept))

    # -- steps -----------------------------------------------------------------------------

    @property
    def _means(self) -> Sequence[Tensor]:
        """The tensors into which averages are written: the results, or fp32 rooms for a feedback
        that wants it."""
        feedback = self.strategy.feedback
        if feedback is None or not feedback.exact_mean or self.bucket.dtype == "float32":
            return self.results
        sizes = self.bucket.sizes
        return [
            self._exact.room(f"{i}", n, torch.float32, self._device) for i, n in enumerate(sizes)
        ]

    def _snapshot(self) -> None:
        if self.exact_undo:
            self._snapshots = [{k: v.clone() for k, v in s.items()} for s in self._states]

    def _encode(self, sections: Sequence[Sections], status: Tensor) -> None:
        self._snapshot()
        self._own = sections
        for i, own in enumerate(sections):
            self._encode_one(i, own, status)

    def _encode_one(self, i: int, sections: Sections, status: Tensor) -> None:
        self._encoders[i].encode(
            self.gradients[i], self._states[i], sections, self._info(i), self._key(i), status
        )

    def _info(self, i: int) -> StepInfo:
        """What a feedback may know of the step, with the parameter's shape."""
        return self.info._replace(shape=self.bucket.parameters[i].shape)

    def _key(self, i: int) -> Key:
        return Key(self.seed, self.info.step, self._names[i], self.rank)

    def _write_results(self, payloads: Sequence[Sequence[Sections]]) -> None:
        accumulate = self.strategy.compressor.accumulate
        for i, (result, parts) in enumerate(zip(self._means, payloads)):
            try:
                accumulate(parts, result, self.world, self._key(i))
            except PayloadError as error:
                raise of_parameter(error, self._names[i]) from error

    def _remember_results(self) -> None:
        feedback = self.strategy.feedback
        if feedback is None:
            return
        for mean, result, state in zip(self._means, self.results, self._states):
            if type(feedback).received is not Feedback.received and kernels.is_finite(mean):
                state.update(feedback.received(mean, state))
            if mean is not result:
                result.copy_(mean)

    def _spoil(self) -> None:
        """Some rank saw inf or NaN: every rank's result is NaN, every state as it was."""
        self.finite = False
        if self.strategy.feedback is not None:  # else nothing is remembered
            if self._shards is not None:
                self._shards.undo(self._states)
            work = zip(self._at_work, self.gradients, self._states, self._own)
            for encoder, x, state, sections in work:
                encoder.undo(x, state, sections, self.info)
        for state, old in zip(self._states, self._snapshots):
            state.clear()
            state.update(old)
        for result in self.results:
            kernels.fill_nan(result)
