"""A bucket's sparse payloads as one stream, and what ranks tell each other of theirs.

parameter 0      parameter 1       …
places, values   places, values         of each, as its compressor says them
└──────────── one stream ─────────┘     places in the flat vector: parameter after parameter
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.errors import PayloadError
from gradwire.layout.message import HEADER_BYTES, told_bytes
from gradwire.local import State, Streams
from gradwire.moves import AllGather, Move
from gradwire.runtime.message import Header, check_headers, check_size, header_of
from gradwire.streams import Ranges, Stream, whole
from gradwire.streams.told import WORD, check_seals, check_within, seal


class BucketStreams(Streams):
    """The local work on one bucket of one rank, step after step.

    plan: a number that all ranks must agree on. is_listed: places travel as int32. states: of
    each parameter.
    compress: writes the sections and says whether all was finite; own: a parameter's stream.
    means: where averages are written. spoil: what happens if some rank was not finite.
    give_back: entries of one parameter, to its memory.
    """

    def __init__(
        self, bucket: Bucket, world: int, plan: int, device: torch.device,
        is_listed: bool, states: Sequence[State], compress: Callable[[], bool],
        own: Callable[[int], tuple[Tensor, Tensor]],
        means: Callable[[], Sequence[Tensor]], spoil: Callable[[], None],
        give_back: Callable[[int, Stream], None],
    ) -> None:  # fmt: skip
        self._bucket, self._world, self._digest = bucket, world, plan
        self._device, self._is_listed = device, is_listed
        self._compress, self._own, self._means = compress, own, means
        self._spoil, self._lost = spoil, give_back
        self.remembered: Remembered = Remembered(states, device)
        self.size, self.parameters = bucket.elements, Ranges([*bucket.offsets, bucket.elements])

    def begin(self, step: int) -> None:
        """A new step."""
        self.damage: PayloadError | None = None
        self._step, self._finite = step, True
        self.remembered.forget()
        self.mean_dtype = next((mean.dtype for mean in self._means()), torch.float32)

    def entries(self) -> Stream:
        kernels.check_index_range(self.size)
        self._finite = self._compress()
        parts = [self._part(i) for i in range(len(self._bucket.sizes))] if self._finite else []
        self.counts = [part.count for part in parts]
        if len(parts) == 1:
            return parts[0]
        none = torch.empty(0, device=self._device)
        offsets = zip(parts, self._bucket.offsets)
        places = [part.places + at for part, at in offsets] or [none.int()]
        values = [part.values for part in parts] or [none]
        return self._stream(torch.cat(places), torch.cat(values))

    def _part(self, i: int) -> Stream:
        """A copy: the compressor's own is overwritten by its next."""
        places, values = self._own(i)
        return self._stream(places.clone(), values.clone())

    def _stream(self, places: Tensor, values: Tensor) -> Stream:
        return Stream(places, values, self.size, self._is_listed)

    def tell(
        self, *numbers: int, most: int | None = None, finite: bool = True
    ) -> Generator[Move, Any, list[list[int]] | None]:
        size = told_bytes(len(numbers))
        message = torch.zeros(size, dtype=torch.uint8, device=self._device)
        damaged = self.damage is not None
        Header(message).write(self._digest, self._step, self._finite and finite, damaged)
        message[HEADER_BYTES:-WORD].view(torch.int64).copy_(torch.tensor(numbers))
        seal(message)
        messages = yield AllGather(message)
        if self.damage is not None:
            raise self.damage
        check_size(messages, self._world, size)
        all_finite = check_headers(header_of(messages), self._digest, self._step)
        check_seals(messages)
        if not all_finite:
            self._spoil()
            return None
        told: list[list[int]] = messages[:, HEADER_BYTES:-WORD].view(torch.int64).tolist()
        for number in (number for row in told for number in row):
            check_within(number, self.size if most is None else most)
        return told

    def give_back(self, lost: Stream) -> None:
        for i, part in enumerate(lost.split(self.parameters)):
            if part.count:
                self._lost(i, part)

    def write(self, means: Sequence[Stream] | Tensor) -> None:
        if isinstance(means, Tensor):
            parts = torch.split(whole(means, self.size), list(self._bucket.sizes))
            for mean, part in zip(self._means(), parts):
                kernels.accumulate_dense(mean, [part], 1.0)
            return
        cut = [stream.split(self.parameters) for stream in means]
        for i, mean in enumerate(self._means()):  # a sum of lists that share no place, in one pass
            own = [by_parameter[i] for by_parameter in cut]
            kernels.accumulate(mean, [s.places for s in own], [s.values for s in own], 1.0)


class Remembered(MutableMapping[str, Sequence[float]]):
    """Numbers of each parameter in its state, by name; what is set counts from `commit` on."""

    def __init__(self, states: Sequence[State], device: torch.device) -> None:
        self._states, self._device = states, device
        self._set: dict[str, Sequence[float]] = {}

    def commit(self) -> None:
        """What was set goes into the states."""
        for name, numbers in self._set.items():
            for state, number in zip(self._states, numbers):
                state[name] = torch.tensor([number], device=self._device)
        self._set = {}

    def forget(self) -> None:
        """What was set is gone."""
        self._set = {}

    def __getitem__(self, name: str) -> Sequence[float]:
        return [float(state[name]) if name in state else 0.0 for state in self._states]

    def __setitem__(self, name: str, numbers: Sequence[float]) -> None:
        self._set[name] = numbers

    def __delitem__(self, name: str) -> None:
        for state in self._states:
            state.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter({name for state in self._states for name in state})

    def __len__(self) -> int:
        return sum(1 for _ in self)
