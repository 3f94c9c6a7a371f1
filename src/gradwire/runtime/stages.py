"""Runs a path of tasks on one bucket.

    numbers ── compress ──► messages ── all_to_all, all_gather ──► more messages
       ▲                                                             │
       └──────────────── decompress: add up, divide ◄────────────────┘

`StageLayout` says what each rank holds, `Walk` moves it, and this module compresses and adds up.
Every compression has encoders and a state of its own; all are undone if a step is spoiled. Numbers
that are not finite are sent as NaN, messages of such have a flag, and at the end every rank finds
NaN in its result. The bucket's status word collects this; the host reads it when the step ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError
from gradwire.layout.stages import Leaf, Region, StageLayout, in_order
from gradwire.layout.walk import Tensors, Walk, cuts
from gradwire.local import LATER_RESIDUALS, Own
from gradwire.runtime.codec import Codec, Outcome
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.message import Header, header_of
from gradwire.runtime.pieces import PieceByPiece
from gradwire.runtime.shards import remembers
from gradwire.runtime.sums import Sum, heeds, sum_all
from gradwire.strategy import Encoder, Key, Recurrence, Rounds, Sections, State, StepInfo


class _Encoded(NamedTuple):
    """One compressed parameter, with all that undoing needs."""

    encoder: Encoder
    x: Tensor
    state: State
    sections: Sections
    info: StepInfo

    def undoing(self) -> Sequence[kernels.UndoTopk]:
        return self.encoder.undoing(self.x, self.state, self.sections, self.info)


class BucketStages(Walk):
    """The local work on one bucket of one rank, step after step.

    kept: what the rank holds where it first compresses; its states have these shapes.
    """

    def __init__(self, codec: Codec, plan: StageLayout) -> None:
        bucket, rank = codec.bucket, codec.rank
        dtype: torch.dtype = getattr(torch, bucket.dtype)
        super().__init__(plan, rank, dtype, codec.device)
        self._codec = codec
        self._encoders: dict[int, list[Encoder]] = {}
        self._encoded: dict[int, list[_Encoded]] = {}  # by site
        first = plan.path.first_compress
        region, names = plan.before(rank, first).region, plan.names(rank, first)
        self.kept = Bucket(tuple(map(_part, bucket.parameters, region, names)))
        self.is_own = plan.path.keeps_own

    def begin(self) -> None:
        """Begins a new step."""
        self._encoded, self._messages, self._numbers = {}, [], []

    def rounds(self) -> Rounds[None]:
        codec, scale = self._codec, self._codec.info.clip_scale
        # If the first task is compress, it clips in the same pass over memory.
        self._is_clipped = scale == 1.0 or not self._tasks[0].is_local
        given: Tensors = list(codec.gradients)
        clip = scale != 1.0 and self._is_clipped
        self._numbers = [x.float() * scale for x in given] if clip else given
        codec.snapshot()
        yield from super().rounds()

    def _finish(self) -> None:
        word = self._codec.verdict.word
        every = zip(self._codec.means, self._numbers, self._in_gradients)
        found = [(mean, x.to(self._device), own) for mean, x, own in every]
        for mean, x, own in found:
            if mean is not x or not own:  # else the gradient is overwritten: too late to undo
                kernels.flag_non_finite(x, word)
        # Results may share memory with gradients, which undoing reads.
        for mean, x, _ in found:
            if mean is not x:
                kernels.copy_unless(word, x, mean)
        self._codec.leave(word)

    def undo(self) -> None:
        """Restores the states of this step's compressions to what they were before."""
        self._undo_from(0)

    def abandon(self) -> None:
        """Does nothing: no result holds numbers of this rank alone."""

    def end(self, outcome: Outcome) -> None:
        """Ends the step, after all its buckets."""
        if outcome == "skipped" and self._codec.strategy.feedback is not None:
            self._undo_from(1)  # what is given back contains what later sites sent
            mine = self._encoded.get(0, ())
            giving = (one.encoder.giving_back(one.state, one.sections) for one in mine)
            kernels.undo_many_topk(list(chain.from_iterable(giving)))
        for encoded in (encoded for site in self._encoded.values() for encoded in site):
            encoded.encoder.release()
        self._encoded, self._numbers, self._messages = {}, [], []

    def leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """Returns the sum of all sites' residuals, which are of means: ranks that hold the same
        region share it. None if there are none."""
        total = None
        sites = (k for k, task in enumerate(self._tasks) if task.name == "compress")
        for number, key in zip(sites, ("residual", *LATER_RESIDUALS)):
            if key in state:
                total = total if total is not None else kernels.zeros(n, self._codec.device)
                begin, end = self._before(number).region[i]
                share = self._codec.world / self._plan.holders(self._rank, number)
                own = state[key].reshape(end - begin).to(total.device)
                total[begin:end].add_(own, alpha=share)
        return total

    def _undo_from(self, first: int) -> None:
        for site in sorted(self._encoded, reverse=True):
            undoing = (one.undoing() for one in self._encoded[site] if site >= first)
            kernels.undo_many_topk(list(chain.from_iterable(undoing)))

    # -- compress --------------------------------------------------------------------------

    def _compress(self, number: int) -> None:
        rank, info = self._rank, self._info(number)
        leaves = self._before(number + 1).leaves
        layouts = [self._plan.layout(leaf) for leaf in leaves]
        device = self._device_of(number)
        messages = [  # zeros, as padding between sections is sent, too
            self._room(f"{number} message {i}", own.bytes, torch.uint8, device).zero_()
            for i, own in enumerate(layouts)
        ]
        views = [own.views(message) for own, message in zip(layouts, messages)]
        names, states = self._plan.names(rank, number), self._codec.states
        voice = self._before(number).voice
        mine = self._encoded[self._plan.site(number)] = []
        header, step = Header(*messages), (self._codec.digest, info.step)
        header.write(*step)
        works = []
        for p, encoder in enumerate(self._encoders_of(number, leaves)):
            sections = tuple(s for i in in_order(leaves, p) for s in views[i][p])
            mine.append(_Encoded(encoder, self._numbers[p].to(device), states[p], sections, info))
            own = Own(mine[-1].x, states[p], info, self._key(names[p], voice))
            works.append(encoder.work(own, sections, header.status))
        kernels.together(works, header.status)
        header.status.bitwise_or_(self._codec.verdict.word.to(device))
        header.spread()
        self._messages = [[message.to(self._codec.device)] for message in messages]

    def _encoders_of(self, number: int, leaves: tuple[Leaf, ...]) -> list[Encoder]:
        """Returns the encoders of a compress task, made once: its regions never change."""
        if number not in self._encoders:
            strategy, site = self._codec.strategy, self._plan.site(number)
            region = self._before(number).region
            again = Recurrence(state=LATER_RESIDUALS[site - 1]) if remembers(strategy) else None
            made = []
            for p, (start, _) in enumerate(region):
                places = [leaves[i].region[p] for i in in_order(leaves, p)]
                bounds = tuple((begin - start, end - start) for begin, end in places)
                one = strategy.compressor
                one = PieceByPiece(one, bounds) if len(leaves) > 1 else one
                first = make_encoder(one, strategy.feedback) if site == 0 else None
                made.append(first or make_encoder(one, None, again))
            self._encoders[number] = made
        return self._encoders[number]

    def _info(self, number: int) -> StepInfo:
        given = self._codec.info
        clips = not self._is_clipped and self._plan.site(number) == 0
        return given if clips else StepInfo(given.step)

    # -- decompress ------------------------------------------------------------------------

    def _decompress(self, number: int) -> None:
        had, verdict = self._before(number), self._codec.verdict
        region = self._before(number + 1).region
        for messages in self._messages:
            verdict.hear(torch.stack([header_of(message) for message in messages]))
        device = self._device_of(number)
        is_last = number == len(self._tasks) - 1
        in_place = is_last and device == self._codec.device
        means = self._codec.means
        self._numbers = (
            list(means) if in_place else self._sums(number, region, means if is_last else ())
        )
        sums = []
        for leaf, here in zip(had.leaves, self._messages):
            messages = [message.to(device) for message in here]
            sums += self._sums_of(leaf, messages, cuts(self._numbers, region, leaf.region))
        self._add_up(sums, verdict.word.to(device))
        word = verdict.word.to(device)  # sums may have raised it
        for x in () if in_place else self._numbers:
            kernels.spoil_if(word, x)

    @property
    def _in_gradients(self) -> list[bool]:
        """Whether each average shares memory with a gradient, which undoing reads."""
        pairs = zip(self._codec.means, self._codec.gradients)
        return [mean.data_ptr() == x.data_ptr() for mean, x in pairs]

    def _sums(self, number: int, region: Region, like: Sequence[Tensor]) -> Tensors:
        """Returns buffers for sums, in fp32 or in the averages' dtypes, where overflow shows."""
        device = self._device_of(number)
        dtypes = [x.dtype for x in like] or [torch.float32] * len(region)
        return [
            self._room(f"{number} sum {p}", end - begin, dtype, device)
            for p, ((begin, end), dtype) in enumerate(zip(region, dtypes))
        ]

    def _sums_of(self, leaf: Leaf, messages: list[Tensor], parts: Tensors) -> list[Sum]:
        """Returns the sums that make the means of one leaf's contributions."""
        payloads = zip(*(self._plan.layout(leaf).views(message) for message in messages))
        work = zip(payloads, parts, leaf.names, self._codec.bucket.names)
        divisor = float(len(messages))
        return [Sum(own, x, divisor, self._key(dice), name) for own, x, dice, name in work]

    def _add_up(self, sums: list[Sum], word: Tensor) -> None:
        """Adds up, unless the word is raised. Damage raises the bucket's word."""
        compressor = self._codec.strategy.compressor

        def add(status: Tensor | None = None) -> None:
            try:
                sum_all(compressor, sums, status)
            except PayloadError as error:
                self._codec.verdict.refuse(error)

        if heeds(compressor, word):
            add(word)
        else:
            kernels.run_unless(word, add)

    def _key(self, name: str, voice: int = 0) -> Key:
        return Key(self._codec.seed, self._codec.info.step, name, voice)

    def _device_of(self, number: int) -> torch.device:
        """Returns the device on which a task works."""
        return torch.device("cpu") if self._tasks[number].at == "cpu" else self._device


def _part(p: Parameter, place: tuple[int, int], name: str) -> Parameter:
    """Returns what a rank keeps state for, as a parameter: all of one, or a part."""
    begin, end = place
    return p if (begin, end) == (0, p.elements) else Parameter(name, (end - begin,))
