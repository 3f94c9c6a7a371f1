"""A bucket's gradients, compressed in one step and, if it comes to nothing, taken back.

begin ──► compress ──► … ──► conclude ──► end
     states updated      averages       skipped: what was sent is given back
                         or, where some rank saw inf or NaN, NaN, and states as they were

Whoever encodes something beside, as owners do, takes part by a `Part`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import repeat
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket, digest
from gradwire.errors import PayloadError
from gradwire.layout.message import HEADER_BYTES, Layout
from gradwire.local import Local, Own
from gradwire.member import padded
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.message import Header
from gradwire.runtime.sums import Sum, heeds, sum_all
from gradwire.runtime.verdict import Verdict
from gradwire.strategy import (
    Compressor,
    Encoder,
    Feedback,
    Key,
    Sections,
    State,
    StepInfo,
    Strategy,
)

Memory: TypeAlias = "dict[str, State]"
"""State by parameter name, then by the feedback's names; survives regrouping and resume."""


Outcome: TypeAlias = Literal["kept", "skipped", "spoiled"]
"""Of a step, for one bucket: it counts; another bucket was not finite; this one was not."""


class Part(Protocol):
    """What remembers something of a step, or has encoders of its own."""

    def begin(self) -> None:
        """A new step."""

    def undo(self) -> None:
        """The step is spoiled: everything as it was before it."""

    def end(self, outcome: Outcome) -> None:
        """After all buckets of the step. Where it is skipped, what was sent is given back."""


class Codec:
    """The compression of one bucket on one rank, step after step.

    The message's buffer is made once, when first needed. memory: shared by all buckets of a model.
    exact_undo keeps a copy of the state during a step, so that undoing a non-finite step is exact
    to the bit instead of to rounding. scratch: shared by the buckets of one lane. lost: a word
    that is raised where it is known beforehand that a step comes to nothing.
    """

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory, *,
        device: torch.device | str = "cpu", seed: int = 0, exact_undo: bool = False,
        scratch: kernels.Scratch | None = None, lost: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.strategy, self.bucket, self.rank, self.world = strategy, bucket, rank, world
        self.seed, self._exact_undo = seed, exact_undo
        # Rows travel as they are, of tables with more elements than places can count.
        by: Compressor = Compressor.parse("none") if bucket.has_rows else strategy.compressor
        self.claims = [by.claims(n, bucket.dtype) for n in bucket.sizes]
        self.ragged = not all(claim.fixed for claim in self.claims)
        self.layout = Layout.of(self.claims)
        self.digest = digest(str(strategy.expand()), bucket.parameters, world)
        self.states: list[State] = [memory.setdefault(name, {}) for name in bucket.names]
        self.device, self.scratch = torch.device(device), scratch or kernels.Scratch()
        self._used = self.layout.bytes  # of ragged: at most
        self.length = torch.tensor([self._used], device=self.device)
        self.parts: list[Part] = []
        self.compressors: Sequence[Compressor] = [strategy.compressor] * len(bucket.names)
        self.verdict, self._lost = Verdict(self.digest, self.device), lost
        self._compressed = False
        self._is_open = False  # whether what averages became is not known until the step ends
        self._own: Sequence[Sections] = ()  # what this step's encoders wrote
        self._snapshots: list[dict[str, Tensor]] = []
        self.known = kernels.Known()
        self._exact = kernels.Scratch()  # the bucket's own: needed until the step ends

    @cached_property
    def buffer(self) -> Tensor:
        """The message, (layout.bytes,) uint8."""
        return torch.zeros(self.layout.bytes, dtype=torch.uint8, device=self.device)

    @cached_property
    def header(self) -> Header:
        """The message's."""
        return Header(self.buffer)

    @cached_property
    def numbers(self) -> Tensor:
        """The message's, as `Layout.numbers`."""
        return self.layout.numbers(self.buffer)

    @cached_property
    def _sections(self) -> list[tuple[Tensor, ...]]:
        return self.layout.views(self.buffer)

    @cached_property
    def _encoders(self) -> list[Encoder]:
        return [make_encoder(one, self.strategy.feedback) for one in self.compressors]

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
        self._compressed, self._own, self._is_open = False, (), False
        self.verdict.begin(info.step)
        for part in self.parts:
            part.begin()

    # -- compressing -------------------------------------------------------------------------

    def cast(self) -> Tensor:
        """The gradients as bare numbers, of a compressor that casts: what is not finite stays so,
        for the sum to tell."""
        work = zip(self.gradients, self._sections)
        into = [kernels.CastInto(x, section) for x, (section,) in work]
        kernels.cast_many(into, None, self.known)
        return self.numbers

    def compress(self) -> None:
        """Into the buffer, once in a step, however often it is asked for; the header's flags tell
        how it went."""
        if self._compressed:
            return
        self._compressed = True
        self.header.write(self.digest, self.info.step)
        if self.ragged:
            self._tell_length(HEADER_BYTES)  # of what is lost
            self._unless_lost(self._compress_ragged, self.header.status)
        else:
            self.encode(self._sections, self.header.status)

    def _compress_ragged(self) -> None:
        """Payloads where each has room for its longest; then each where the one before it ended.
        The host reads their lengths, and the word, once."""
        status = self.header.status
        self._encode(self._sections, status)
        words = [section[:8].view(torch.int64) for (section,) in self._sections]
        raised, *lengths = torch.cat([status, *words]).tolist()
        if raised:  # a spoiled step sends no payloads, but undoing it reads them
            return
        at, own = HEADER_BYTES, list[Sections]()
        for (section,), length in zip(self._sections, lengths):
            here = self.buffer[at : at + section.numel()]
            if here.data_ptr() != section.data_ptr():
                here[:length] = section[:length].clone()  # which may overlap
            own.append((here,))
            at += padded(length)
        self._own = own
        self._tell_length(at)

    def _tell_length(self, length: int) -> None:
        self._used = length
        kernels.stamp(self.length, [length])

    def encode(self, sections: Sequence[Sections], status: Tensor) -> None:
        """Encode every parameter into its sections, which raises the status if all is not well."""
        self._unless_lost(lambda: self._encode(sections, status), status)

    def _unless_lost(self, work: Callable[[], None], status: Tensor) -> None:
        """Work on gradients; if the step is lost, they are NaN, and a room that is not waited for
        need not begin."""

        def give_up() -> None:
            status.bitwise_or_(kernels.NON_FINITE)

        if self._lost is None or kernels.goes_on(self._lost):
            work()
        else:
            kernels.run_unless(self._lost, work, otherwise=give_up)

    def _encode(self, sections: Sequence[Sections], status: Tensor) -> None:
        self.snapshot()
        self._own = sections
        work = zip(self._encoders, self.brings(), sections)
        works = (encoder.work(own, to, status) for encoder, own, to in work)
        kernels.together(works, status, self.known)

    @property
    def encoded(self) -> Tensor:
        """The message, as much of it as this step has."""
        return self.buffer[: self._used] if self.ragged else self.buffer

    def sections_in(self, message: Tensor) -> list[Sections]:
        """What was encoded of each parameter, in the message or a copy of it."""
        if message.data_ptr() == self.buffer.data_ptr():
            return list(self._own)
        return [tuple(_same_part(s, self.buffer, message) for s in own) for own in self._own]

    def brings(self) -> list[Own]:
        """What this rank has of each parameter in this step."""
        step, clip_scale, _ = self.info
        shapes = (p.shape for p in self.bucket.parameters)
        infos = map(StepInfo, repeat(step), repeat(clip_scale), shapes)
        return list(map(Own, self.gradients, self.states, infos, self._keys()))

    def locals(self) -> list[Local]:
        """The parameters themselves, clipped."""
        self.snapshot()
        scale = self.info.clip_scale
        work = zip(self.bucket.parameters, self.gradients, self.results, self.states)
        return [
            Local(p.name, p.shape, x if scale == 1.0 else x.float() * scale, result, state)
            for p, x, result, state in work
        ]

    def _keys(self) -> list[Key]:
        """The keys of the parameters' dice in this step."""
        seed, step, rank = self.seed, self.info.step, self.rank
        return list(map(Key, repeat(seed), repeat(step), self.bucket.names, repeat(rank)))

    # -- averages ------------------------------------------------------------------------------

    @property
    def means(self) -> Sequence[Tensor]:
        """The tensors into which averages are written: the results, or fp32 rooms for a feedback
        that wants it."""
        feedback = self.strategy.feedback
        if feedback is None or not feedback.exact_mean or self.bucket.dtype == "float32":
            return self.results
        sizes = self.bucket.sizes
        return [
            self._exact.room(f"{i}", n, torch.float32, self.device) for i, n in enumerate(sizes)
        ]

    def conclude(self, write: Callable[[], None]) -> None:
        """Write the averages, if all that arrived is well: PayloadError, if one is bad. Else every
        state becomes what it was, and averages are NaN."""

        def write_or_refuse() -> None:
            try:
                write()
            except PayloadError as error:
                self.verdict.refuse(error)
                self._spoil_results()

        kernels.run_unless(self.verdict.word, write_or_refuse, otherwise=self._take_back)

    def conclude_sums(
        self, write: Callable[[Tensor | None], None], by: Compressor | None = None
    ) -> None:
        """`conclude` of averages. Where kernels heed the word nobody waits: averages are written
        on the device if all is well, and what is to be taken back is when the step ends. Until
        then gradients are what they were, though results may lie where they do.

        write: is given the word then, else None. by: whose payloads are added up, if not the
        strategy's compressor's."""
        word = self.verdict.word
        if self.ragged or not heeds(by or self.strategy.compressor, word):
            self.conclude(lambda: write(None))
            return
        self._is_open = True
        try:
            write(word)
        except PayloadError as error:
            self.verdict.refuse(error)

    def leave(self, status: Tensor) -> None:
        """`conclude` of averages that are in place already, whatever they are: they count unless
        the status is raised, too."""
        self.verdict.word.bitwise_or_(status)
        self._is_open = True

    def _take_back(self) -> None:
        """Undone first: results may lie where gradients do."""
        self._undo()
        self._spoil_results()

    def average(
        self, payloads: Sequence[Sequence[Sections]], status: Tensor | None,
        known: kernels.Known | None,
    ) -> None:  # fmt: skip
        """The averages of payloads, by parameter, then by rank. PayloadError if one is bad.
        status: instead of an error, and of what is written where it is raised."""
        work = zip(self.means, payloads, self._keys())
        by = float(self.world)
        sums = [Sum(parts, mean, by, key, key.parameter) for mean, parts, key in work]
        sum_all(self.strategy.compressor, sums, status, known)

    def add_up(self, segments: Sequence[kernels.SumCoded]) -> None:
        """Averages of lists. PayloadError if one is bad, at once or, where the host would have to
        wait for a device to know, when the step ends."""
        heeded = kernels.goes_on(self.verdict.word)
        self._is_open = self._is_open or heeded
        kernels.add_up(segments, self.verdict.word if heeded else None)

    def look_at_means(self) -> None:
        """Averages are there. Whether each is finite, for a feedback that has a last word, is told
        on the device, to be read with the verdict."""
        feedback = self.strategy.feedback
        if feedback is not None and type(feedback).received is not Feedback.received:
            means = self.means
            words = torch.zeros(len(means), dtype=torch.int64, device=self.device)
            for mean, word in zip(means, torch.split(words, 1)):
                kernels.flag_non_finite(mean, word)
            self.verdict.ask(words)

    def _remember_results(self, feedback: Feedback) -> None:
        means = self.means
        if self.verdict.answers is None:  # nobody looked before the step's end
            self.look_at_means()
        for mean, state, word in zip(means, self.states, self.verdict.answers or ()):
            if not word:
                state.update(feedback.received(mean, state))
        for mean, result in zip(means, self.results):
            if mean is not result:
                result.copy_(mean)

    # -- taking back ----------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Keep copies of the states, if undoing must be exact."""
        if self._exact_undo:
            self._snapshots = [{k: v.clone() for k, v in s.items()} for s in self.states]

    @property
    def finite(self) -> bool:
        """False where a rank saw inf or NaN, as far as is known: the host waits for the device.
        Raises PayloadError, where what arrived cannot be used."""
        try:
            return self.verdict.fine
        except PayloadError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """The step has failed: where it is not known yet what averages became, they are NaN, and
        states as they were, unless averages lie where their gradients did."""
        if self._is_open:
            self._is_open = False
            if self.verdict.held_back:
                self._undo()
            self._spoil_results()

    def spoil(self) -> None:
        """Some rank saw inf or NaN: every rank's result is NaN, every state as it was."""
        self.verdict.spoil()
        self._take_back()

    def _undo(self) -> None:
        if self.strategy.feedback is not None:  # else nothing is remembered
            for part in self.parts:
                part.undo()
            work = zip(self._at_work, self.gradients, self.states, self._own)
            kernels.undo_many_topk([
                left for encoder, x, state, sections in work
                for left in encoder.undoing(x, state, sections, self.info)
            ])  # fmt: skip
        for state, old in zip(self.states, self._snapshots):
            state.clear()
            state.update(old)

    def _give_back(self) -> None:
        work = zip(self._at_work, self.states, self._own)
        kernels.undo_many_topk([
            left for encoder, state, sections in work
            for left in encoder.giving_back(state, sections)
        ])  # fmt: skip

    def _spoil_results(self) -> None:
        for result in self.results:
            kernels.fill_nan(result)

    def end(self, skipped: bool) -> None:
        """After all buckets of the step. skipped: some bucket was not finite."""
        feedback = self.strategy.feedback
        outcome: Outcome = "spoiled" if not self.finite else "skipped" if skipped else "kept"
        if feedback is not None and outcome == "kept":
            self._remember_results(feedback)
        if outcome == "spoiled" and self._is_open:
            self._take_back()
        self._is_open = False
        for part in self.parts:
            part.end(outcome)
        if feedback is not None and outcome == "skipped":
            self._give_back()
        if skipped and feedback is not None:
            self._spoil_results()  # given back: a step with it would count it twice
        for encoder in self._at_work:
            encoder.release()
        self._snapshots = []
        self.gradients = self.results = ()  # so that zero_grad(set_to_none=True) frees them


def _same_part(section: Tensor, of: Tensor, copy: Tensor) -> Tensor:
    """What a section of one message is in a copy of it, which may end within a ragged one."""
    begin = section.data_ptr() - of.data_ptr()
    return copy[begin : begin + section.nbytes].view(section.dtype)
