"""Compresses a bucket's gradients in a step, and undoes that if the step does not count.

begin ──► compress ──► … ──► conclude ──► end
     states updated      averages       skipped: what was sent is given back
                         or, if some rank saw inf or NaN: NaN, and states as they were

Other code that encodes something in a step, as owners do, takes part as a `Part`.
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
from gradwire.streams.told import told_length

Memory: TypeAlias = "dict[str, State]"
"""States by parameter name, then by the feedback's names; they survive regrouping and resume."""


Outcome: TypeAlias = Literal["kept", "skipped", "spoiled"]
"""The outcome of a step for one bucket: it counts; another bucket was not finite; this was not."""


class Part(Protocol):
    """Code that keeps state during a step, or has encoders of its own."""

    def begin(self) -> None:
        """Begins a new step."""

    def undo(self) -> None:
        """Restores everything to what it was before the step, which is spoiled."""

    def end(self, outcome: Outcome) -> None:
        """Ends the step, after all its buckets. If it is skipped, what was sent is given back."""


class Codec:
    """The compression of one bucket on one rank, step after step.

    The message's buffer is made once, when first needed. memory: shared by all buckets of a model.
    exact_undo: keep a copy of the state during a step, so that undoing a non-finite step is exact
    to the bit instead of to rounding. scratch: shared by the buckets of one lane. lost: a status
    word that is raised if it is known beforehand that a step will not count.
    """

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory, *,
        device: torch.device | str = "cpu", seed: int = 0, exact_undo: bool = False,
        scratch: kernels.Scratch | None = None, lost: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.strategy, self.bucket, self.rank, self.world = strategy, bucket, rank, world
        self.seed, self._exact_undo = seed, exact_undo
        # Rows are sent uncompressed; their tables may have more elements than places can count.
        by: Compressor = Compressor.parse("none") if bucket.has_rows else strategy.compressor
        self.claims = [by.claims(n, bucket.dtype) for n in bucket.sizes]
        self.ragged = not all(claim.fixed for claim in self.claims)
        self.layout = Layout.of(self.claims)
        self.digest = digest(str(strategy.expand()), bucket.parameters, world)
        self.states: list[State] = [memory.setdefault(name, {}) for name in bucket.names]
        self.device, self.scratch = torch.device(device), scratch or kernels.Scratch()
        self._used = self.layout.bytes  # if ragged, the most
        self.length = torch.tensor(told_length(self._used), device=self.device, dtype=torch.int64)
        self.parts: list[Part] = []
        self.compressors: Sequence[Compressor] = [strategy.compressor] * len(bucket.names)
        self.verdict, self._lost = Verdict(self.digest, self.device), lost
        self._compressed = False
        self._is_open = False  # whether it is unknown until the step ends if averages are valid
        self._is_back = False  # whether the step was undone
        self.is_concluded = False
        """Whether averages were written in this step, or it is known not to count."""
        self._own: Sequence[Sections] = ()  # what this step's encoders wrote
        self._snapshots: list[dict[str, Tensor]] = []
        self.known = kernels.Known()
        feedback, has_rows = strategy.feedback, bucket.has_rows
        self._may_overflow = feedback is not None and bucket.dtype == "float16" and not has_rows
        wants_exact = feedback is not None and feedback.exact_mean and bucket.dtype != "float32"
        self.means_are_apart = wants_exact or self._may_overflow
        """Whether averages are written to results only when the step ends."""
        self._exact = kernels.Scratch()  # the bucket's own: needed until the step ends

    @cached_property
    def buffer(self) -> Tensor:
        """The message, (layout.bytes,) uint8."""
        return torch.zeros(self.layout.bytes, dtype=torch.uint8, device=self.device)

    @cached_property
    def header(self) -> Header:
        """The message's header."""
        return Header(self.buffer)

    @cached_property
    def numbers(self) -> Tensor:
        """The message's values, as `Layout.numbers` returns them."""
        return self.layout.numbers(self.buffer)

    @cached_property
    def _sections(self) -> list[tuple[Tensor, ...]]:
        return self.layout.views(self.buffer)

    @cached_property
    def _encoders(self) -> list[Encoder]:
        return [make_encoder(one, self.strategy.feedback) for one in self.compressors]

    @property
    def _at_work(self) -> Sequence[Encoder]:
        """The encoders that this step used: none if it encodes nothing, when it may not be known
        yet which pieces they are for."""
        return self._encoders if self._own else ()

    def begin(
        self, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Starts a step. Both: one contiguous 1-D tensor per parameter; they may be the same."""
        self.gradients, self.results, self.info = gradients, results, info
        self._compressed, self._own = False, ()
        self._is_open = self._is_back = self.is_concluded = False
        self.verdict.begin(info.step)
        for part in self.parts:
            part.begin()

    # -- compressing -------------------------------------------------------------------------

    def cast(self) -> Tensor:
        """Returns the gradients as bare numbers, for a compressor that only casts. The sum shows
        whether they are finite."""
        work = zip(self.gradients, self._sections)
        into = [kernels.CastInto(x, section) for x, (section,) in work]
        kernels.cast_many(into, None, self.known)
        return self.numbers

    def compress(self) -> None:
        """Compresses into the buffer, once in a step, however often it is called. The header's
        flags say whether all was finite."""
        if self._compressed:
            return
        self._compressed = True
        self.header.write(self.digest, self.info.step)
        if self.ragged:
            self._tell_length(HEADER_BYTES)  # the length if the step is lost
            self._unless_lost(self._compress_ragged, self.header.status)
        else:
            self.encode(self._sections, self.header.status)

    def _compress_ragged(self) -> None:
        """Encodes each payload where its longest would fit, then moves each to the end of the one
        before. The host reads their lengths, and the status word, once."""
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
                here[:length] = section[:length].clone()  # the two may overlap
            own.append((here,))
            at += padded(length)
        self._own = own
        self._tell_length(at)

    def _tell_length(self, length: int) -> None:
        self._used = length
        kernels.stamp(self.length, told_length(length))

    def encode(self, sections: Sequence[Sections], status: Tensor) -> None:
        """Encodes every parameter into its sections, and raises the status if all is not well."""
        self._unless_lost(lambda: self._encode(sections, status), status)

    def _unless_lost(self, work: Callable[[], None], status: Tensor) -> None:
        """Does the work unless the step is lost (gradients are NaN then). If the host would have
        to wait to know, the work is done anyway."""

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
        """The message, as long as it is in this step."""
        return self.buffer[: self._used] if self.ragged else self.buffer

    def sections_in(self, message: Tensor) -> list[Sections]:
        """Returns each parameter's encoded sections, in the message or a copy of it."""
        if message.data_ptr() == self.buffer.data_ptr():
            return list(self._own)
        return [tuple(_same_part(s, self.buffer, message) for s in own) for own in self._own]

    def brings(self) -> list[Own]:
        """Returns what this rank brings of each parameter to this step."""
        step, clip_scale, _ = self.info
        shapes = (p.shape for p in self.bucket.parameters)
        infos = map(StepInfo, repeat(step), repeat(clip_scale), shapes)
        return list(map(Own, self.gradients, self.states, infos, self._keys()))

    def locals(self) -> list[Local]:
        """Returns the parameters themselves, with clipped gradients."""
        self.is_concluded = True  # whoever calls this writes averages itself
        self.snapshot()
        scale = self.info.clip_scale
        work = zip(self.bucket.parameters, self.gradients, self.results, self.states)
        return [
            Local(p.name, p.shape, x if scale == 1.0 else x.float() * scale, result, state)
            for p, x, result, state in work
        ]

    def _keys(self) -> list[Key]:
        """Returns the keys of the parameters' dice in this step."""
        seed, step, rank = self.seed, self.info.step, self.rank
        return list(map(Key, repeat(seed), repeat(step), self.bucket.names, repeat(rank)))

    # -- averages ------------------------------------------------------------------------------

    @property
    def means(self) -> Sequence[Tensor]:
        """The tensors into which averages are written: the results, or fp32 buffers if the
        feedback wants those, or if undoing may have to read gradients, where results may lie:
        sums with residuals may leave float16's range."""
        if not self.means_are_apart:
            return self.results
        sizes = self.bucket.sizes
        return [
            self._exact.room(f"{i}", n, torch.float32, self.device) for i, n in enumerate(sizes)
        ]

    def conclude(self, write: Callable[[], None]) -> None:
        """Writes the averages if all messages are well; the verdict keeps a PayloadError that
        `write` raises. Else every state becomes what it was, and averages are NaN."""

        def write_or_refuse() -> None:
            try:
                write()
            except PayloadError as error:
                self.verdict.refuse(error)
                self._spoil_results()

        self.is_concluded = True
        kernels.run_unless(self.verdict.word, write_or_refuse, otherwise=self._take_back)

    def conclude_sums(
        self, write: Callable[[Tensor | None], None], by: Compressor | None = None
    ) -> None:
        """Does what `conclude` does, for averages. Where kernels heed the status word, the host
        does not wait: the device writes averages if all is well, and undoing follows when the step
        ends. Until then an invalid step leaves gradients as they were, even if results share their
        memory.

        write: called with the status word in that case, else with None. by: the compressor whose
        payloads are added up, if not the strategy's."""
        word = self.verdict.word
        if self.ragged or not heeds(by or self.strategy.compressor, word):
            self.conclude(lambda: write(None))
            return
        self._is_open = self.is_concluded = True
        try:
            write(word)
        except PayloadError as error:
            self.verdict.refuse(error)

    def leave(self, status: Tensor) -> None:
        """Does what `conclude` does, for averages that are in place already: they count unless the
        verdict or this status is raised."""
        self.verdict.word.bitwise_or_(status)
        self._is_open = self.is_concluded = True

    def _take_back(self) -> None:
        """Undoes the step, once, then writes NaN: undoing reads gradients, where results may
        lie."""
        if not self._is_back:
            self._is_back = True
            self._undo()
        self._spoil_results()

    def average(
        self, payloads: Sequence[Sequence[Sections]], status: Tensor | None,
        known: kernels.Known | None,
    ) -> None:  # fmt: skip
        """Averages payloads, given by parameter, then by rank. Raises PayloadError if one is bad.
        status: kernels raise it instead of an error, and write nothing if it is raised."""
        work = zip(self.means, payloads, self._keys())
        by = float(self.world)
        sums = [Sum(parts, mean, by, key, key.parameter) for mean, parts, key in work]
        sum_all(self.strategy.compressor, sums, status, known)

    def add_up(self, segments: Sequence[kernels.SumCoded]) -> None:
        """Writes averages of lists. A bad one raises PayloadError: at once, or when the step ends
        if the host would have to wait for a device to know."""
        heeded = kernels.goes_on(self.verdict.word)
        self._is_open = self._is_open or heeded
        kernels.add_up(segments, self.verdict.word if heeded else None)

    def look_at_means(self) -> None:
        """Checks written averages on the device, for what is read when the step ends: for inf and
        NaN, for a feedback that reads them (`received`); and whether float16 can hold them, so
        that an average that it cannot hold is undone, not lost."""
        feedback = self.strategy.feedback
        for mean in self.means if self._may_overflow else ():
            short = self.scratch.room("short", mean.numel(), torch.float16, self.device)
            kernels.cast(mean, short, self.verdict.word)
            self._is_open = True
        if feedback is not None and type(feedback).received is not Feedback.received:
            means = self.means
            words = torch.zeros(len(means), dtype=torch.int64, device=self.device)
            for mean, word in zip(means, torch.split(words, 1)):
                kernels.flag_non_finite(mean, word)
            self.verdict.ask(words)

    def _remember_results(self, feedback: Feedback) -> None:
        means = self.means
        if self.verdict.answers is None:  # not checked before the step's end
            self.look_at_means()
        for mean, state, word in zip(means, self.states, self.verdict.answers or ()):
            if not word:
                found = feedback.received(mean, state)
                state.update({key: _apart(value, mean) for key, value in found.items()})
        for mean, result in zip(means, self.results):
            if mean is not result:
                result.copy_(mean)

    # -- taking back ----------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Keeps copies of the states if undoing must be exact."""
        if self._exact_undo:
            self._snapshots = [{k: v.clone() for k, v in s.items()} for s in self.states]

    @property
    def finite(self) -> bool:
        """Whether no rank saw inf or NaN, as far as is known; the host waits for the device.
        Raises PayloadError if something that arrived cannot be used."""
        try:
            return self.verdict.fine
        except PayloadError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Gives up a step that has failed. If it is not known yet whether averages are valid, they
        become NaN, and states become what they were unless averages may have been written."""
        if self._is_open:
            self._is_open = False
            if self.verdict.held_back:
                self._undo()
            self._spoil_results()

    def spoil(self) -> None:
        """Spoils the step, as some rank saw inf or NaN: every rank's results become NaN, and its
        states what they were."""
        self.verdict.spoil()
        self.is_concluded = True
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
        """Ends the step, after all its buckets. skipped: some bucket was not finite."""
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
            self._spoil_results()  # they were given back; using them would count them twice
        for encoder in self._at_work:
            encoder.release()
        self._snapshots = []
        self.gradients = self.results = ()  # so that zero_grad(set_to_none=True) frees them


def _apart(value: Tensor, mean: Tensor) -> Tensor:
    """Returns a state that does not share memory with the mean, which the next gradient takes."""
    shared = 0 <= value.data_ptr() - mean.data_ptr() < mean.nbytes
    return value.clone() if shared else value


def _same_part(section: Tensor, of: Tensor, copy: Tensor) -> Tensor:
    """Returns a message's section in a copy of it, which may end within a ragged one."""
    begin = section.data_ptr() - of.data_ptr()
    return copy[begin : begin + section.nbytes].view(section.dtype)
