"""A bucket's sparse payloads as one stream, and the numbers that ranks tell each other of theirs.

parameter 0      parameter 1       …
places, values   places, values         of each, as its compressor gives them
└──────────── one stream ─────────┘     places in the flat vector: parameter after parameter

Streams lie in the host's memory, as their number of entries decides what is sent next. From a
device the encoded message is copied down, once, with the lane's thread waiting, and averages are
copied up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import digest
from gradwire.errors import PayloadError
from gradwire.layout.message import HEADER_BYTES, told_bytes
from gradwire.local import ESTIMATE, RESIDUAL, Rounds, State, Streams
from gradwire.moves import AllGather
from gradwire.runtime import host_copies
from gradwire.runtime.codec import Codec, Outcome
from gradwire.runtime.host_copies import HostCopies
from gradwire.runtime.message import Header, check_headers, check_size, header_of
from gradwire.streams import Ranges, Stream, whole
from gradwire.streams.told import WORD, check_seals, check_within, seal


class BucketStreams(Streams):
    """The local work on one bucket of one rank, step after step."""

    def __init__(self, codec: Codec) -> None:
        self._codec, bucket = codec, codec.bucket
        self._digest = digest(codec.digest, codec.seed)
        self._is_listed = any(claim.listed for claim in codec.claims)
        self.remembered: _Remembered = _Remembered(codec.states)
        apart = host_copies.is_apart(codec.device)
        self._copies = HostCopies(codec.device) if apart else None
        self.size, self.parameters = bucket.elements, Ranges([*bucket.offsets, bucket.elements])
        self._given_back: list[tuple[Tensor, Tensor, Tensor]] = []  # with what undoes it
        self.begin()

    def begin(self) -> None:
        """Begins a new step."""
        self.damage: PayloadError | None = None
        self._finite, self._given_back = True, []
        self.remembered.clear()

    @property
    def mean_dtype(self) -> torch.dtype:  # type: ignore[override]
        """The dtype of averages."""
        return next((mean.dtype for mean in self._codec.means), torch.float32)

    def undo(self) -> None:
        """Takes out of the states what was given back in this step; `begin` clears what was
        set."""
        for v, places, values in self._given_back:
            self._add(v, places, values, 1.0)
        self._given_back = []

    def end(self, outcome: Outcome) -> None:
        """Ends the step, after all its buckets."""
        if outcome == "kept":
            self.remembered.commit()
        if outcome == "skipped":  # the codec gives all entries back next, these among them
            self.undo()

    def entries(self) -> Stream:
        kernels.check_index_range(self.size)
        codec = self._codec
        codec.compress()
        message, header = codec.encoded, codec.header
        if self._copies is not None:
            header = Header(message := self._copies.down(message))
        self._finite = not kernels.is_raised(header.status)  # the host needs counts anyway
        parts = self._parts(message) if self._finite else []
        self.counts = [part.count for part in parts]
        if len(parts) == 1:
            return parts[0]
        none = torch.empty(0, dtype=torch.float32, device="cpu")
        offsets = zip(parts, codec.bucket.offsets)
        places = [part.places + at for part, at in offsets] or [none.int()]
        values = [part.values for part in parts] or [none]
        return self._stream(torch.cat(places), torch.cat(values))

    def _parts(self, message: Tensor) -> list[Stream]:
        """Returns each parameter's entries, copied: the compressor reuses its buffers."""
        codec = self._codec
        read, sizes = codec.strategy.compressor.read, codec.bucket.sizes
        found = (read(own, n) for own, n in zip(codec.sections_in(message), sizes))
        return [self._stream(places.clone(), values.clone()) for places, values in found]

    def _stream(self, places: Tensor, values: Tensor) -> Stream:
        return Stream(places, values, self.size, self._is_listed)

    def tell(
        self, *numbers: int, most: int | None = None, finite: bool = True,
        luggage: Tensor | None = None,
    ) -> Rounds[list[list[int]] | None]:  # fmt: skip
        carried = 0 if luggage is None else luggage.numel()
        codec, size = self._codec, told_bytes(len(numbers), carried)
        ends = HEADER_BYTES + WORD * len(numbers)
        message = torch.zeros(size, dtype=torch.uint8, device="cpu")
        flags, step = 0 if self._finite and finite else kernels.NON_FINITE, codec.info.step
        flags |= kernels.DAMAGED if self.damage is not None else 0
        Header(message).write(self._digest, step, flags)
        message[HEADER_BYTES:ends].view(torch.int64).copy_(
            torch.tensor(numbers, dtype=torch.int64, device="cpu")
        )
        if luggage is not None:
            message[ends:-WORD] = luggage
        seal(message, codec.rank)
        messages = yield AllGather(message)
        if self.damage is not None:
            raise self.damage
        check_size(messages, codec.world, size)
        all_finite = check_headers(header_of(messages), self._digest, step)
        check_seals(messages, range(codec.world))
        if not all_finite:
            codec.spoil()
            return None
        told: list[list[int]] = messages[:, HEADER_BYTES:ends].view(torch.int64).tolist()
        self.luggage = messages[:, ends:-WORD]
        for number in (number for row in told for number in row):
            check_within(number, self.size if most is None else most)
        return told

    @property
    def _makes_good(self) -> bool:
        feedback = self._codec.strategy.feedback
        return feedback is not None and feedback.makes_good

    def give_back(self, lost: Stream) -> None:
        if not self._makes_good:
            return
        for state, part in zip(self._codec.states, lost.split(self.parameters)):
            if part.count:
                name, sign = (ESTIMATE, -1.0) if ESTIMATE in state else (RESIDUAL, 1.0)
                values = part.values.float()
                self._add(state[name], part.places, values, sign)
                self._given_back.append((state[name], part.places, values * -sign))

    def waiting(self, at: Stream) -> Tensor:
        parts = at.split(self.parameters)
        work = [(s, part) for s, part in zip(self._codec.states, parts) if part.count]
        if not self._makes_good or any(ESTIMATE in state for state, _ in work):
            return torch.zeros(at.count, dtype=torch.float32, device="cpu")
        if not work:
            return torch.zeros(0, dtype=torch.float32, device="cpu")
        together = torch.cat([
            state[RESIDUAL].index_select(0, self._lifted([part.places])[0]) for state, part in work
        ])  # fmt: skip
        return together if self._copies is None else self._copies.down(together).clone()

    def _add(self, v: Tensor, places: Tensor, values: Tensor, factor: float) -> None:
        """Computes v[places] += factor · values, with entries of this rank."""
        places, values = self._lifted([places, values])
        kernels.add(v, places, values, factor, are_own=True)

    def write(self, means: Sequence[Stream] | Tensor) -> None:
        codec = self._codec
        codec.is_concluded = True
        if isinstance(means, Tensor):
            (flat,) = self._lifted([whole(means, self.size)])
            for mean, part in zip(codec.means, torch.split(flat, list(codec.bucket.sizes))):
                kernels.accumulate_dense(mean, [part], 1.0)
            return
        cut = [stream.split(self.parameters) for stream in means]
        parts = [part for by_parameter in zip(*cut) for part in by_parameter]
        places, values = self._beside([s.places for s in parts], [s.values for s in parts])
        own = [slice(i, i + len(means)) for i in range(0, len(parts), len(means))]
        codec.add_up([  # lists share no place, so one pass adds them
            kernels.SumCoded(mean, ["int32"] * len(means), places[of], values[of], 1.0)
            for mean, of in zip(codec.means, own)
        ])  # fmt: skip

    def _beside(
        self, places: list[Tensor], values: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Copies all lists to the averages' device: one copy for places, values, however many."""
        if self._copies is None or not places:
            return places, values
        counts = [part.numel() for part in places]
        up = self._lifted([torch.cat(places), torch.cat(values)])
        return list(torch.split(up[0], counts)), list(torch.split(up[1], counts))

    def _lifted(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors if self._copies is None else self._copies.lift(tensors)


class _Remembered(dict[str, Sequence[float]]):
    """Numbers of each parameter, by name: from its state, unless others are set; `commit` puts
    these into the states."""

    def __init__(self, states: Sequence[State]) -> None:
        self._states = states

    def __missing__(self, name: str) -> Sequence[float]:
        return [float(state[name]) if name in state else 0.0 for state in self._states]

    def commit(self) -> None:
        """Puts what was set into the states, in host memory, as the host reads it."""
        for name, numbers in self.items():
            for state, number in zip(self._states, numbers):
                state[name] = torch.tensor([number], dtype=torch.float32, device="cpu")
        self.clear()
