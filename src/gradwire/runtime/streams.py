"""A bucket's sparse payloads as one stream: compressed, cut, coded, merged and written.

parameter 0      parameter 1       …
places, values   places, values         of each, as its compressor says them
└──────────── one stream ─────────┘     places in the flat vector: parameter after parameter
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket, digest
from gradwire.errors import PayloadError
from gradwire.layout.message import HEADER_BYTES
from gradwire.layout.streams import WORD, announced_bytes
from gradwire.local import State
from gradwire.moves import AllGather
from gradwire.runtime.coded_streams import CodedStreams
from gradwire.runtime.domains import HashedElements, Ranges, chunks_or_ranges
from gradwire.runtime.message import (
    Header,
    check_headers,
    check_seals,
    check_size,
    header_of,
    seal,
)
from gradwire.streams import Domains, Form, Stream


class BucketStreams(CodedStreams):
    """The local work on one bucket of one rank, step after step.

    is_listed: places travel as int32. states: of each parameter.
    compress: writes the sections and says whether all was finite; own: a parameter's stream.
    means: where averages are written. spoil: what happens if some rank was not finite.
    give_back: entries of one parameter, to its memory.
    """

    def __init__(
        self, bucket: Bucket, rank: int, world: int, seed: int, device: torch.device,
        is_listed: bool, states: Sequence[State], compress: Callable[[], bool],
        own: Callable[[int], tuple[Tensor, Tensor]],
        means: Callable[[], Sequence[Tensor]], spoil: Callable[[], None],
        give_back: Callable[[int, Stream], None],
    ) -> None:  # fmt: skip
        self._bucket, self._rank, self._world, self._seed = bucket, rank, world, seed
        self._device, self.is_listed, self._states = device, is_listed, states
        self._compress, self._own, self._means = compress, own, means
        self._spoil, self._lost = spoil, give_back
        self.kept: dict[str, Sequence[int]] = {}
        self._to_remember: dict[str, Sequence[float]] = {}
        self.damage: PayloadError | None = None
        self._finite = True
        self.size = bucket.elements
        self.mean_dtype = torch.float32

    def begin(self, plan: int, step: int) -> None:
        """A new step."""
        self._digest, self.step = digest(plan, self._seed), step
        self.damage, self._finite, self._to_remember = None, True, {}
        self.mean_dtype = self._means()[0].dtype

    def commit(self) -> None:
        """The step was not skipped."""
        for name, numbers in self._to_remember.items():
            for state, number in zip(self._states, numbers):
                state[name] = torch.tensor([number], device=self._device)
        self._to_remember = {}

    def recall(self, name: str) -> list[float]:
        return [float(state[name]) if name in state else 0.0 for state in self._states]

    def remember(self, name: str, numbers: Sequence[float]) -> None:
        self._to_remember[name] = numbers

    def entries(self) -> Stream:
        kernels.check_index_range(self.size)
        self._finite = self._compress()
        if not self._finite:
            return self._nothing()
        parts = [self._own_part(i) for i in range(len(self._bucket.sizes))]
        self.counts = [part.count for part in parts]
        if len(parts) == 1:
            return parts[0]
        return Stream(
            torch.cat([part.places + at for part, at in zip(parts, self._bucket.offsets)]),
            torch.cat([part.values for part in parts]),
        )

    def _own_part(self, i: int) -> Stream:
        """A copy: the compressor's own is overwritten by its next."""
        places, values = self._own(i)
        return Stream(places.clone(), values.clone())

    def _nothing(self) -> Stream:
        none = torch.empty(0, device=self._device)
        return Stream(none.int(), none)

    # -- what all ranks hear ----------------------------------------------------------------

    def announce(self, *numbers: int, finite: bool = True) -> AllGather:
        self._announced = announced_bytes(len(numbers))
        message = torch.zeros(self._announced, dtype=torch.uint8, device=self._device)
        damaged = self.damage is not None
        Header(message).write(self._digest, self.step, self._finite and finite, damaged)
        message[HEADER_BYTES:-WORD].view(torch.int64).copy_(torch.tensor(numbers))
        seal(message)
        return AllGather(message)

    def heard(self, messages: Tensor, most: int | None = None) -> list[list[int]] | None:
        if self.damage is not None:
            raise self.damage
        check_size(messages, self._world, self._announced)
        finite = check_headers(header_of(messages), self._digest, self.step)
        check_seals(messages)
        if not finite:
            self._spoil()
            return None
        numbers: list[list[int]] = messages[:, HEADER_BYTES:-WORD].view(torch.int64).tolist()
        for row in numbers:
            for number in row:
                self._check_count(number, most)
        return numbers

    def coded_count(self, count: int) -> Tensor:
        return torch.tensor([count, ~count], device=self._device).view(torch.uint8)

    def read_count(self, message: Tensor, most: int) -> int:
        count, inverse = self.whole(message, 2 * WORD).view(torch.int64).tolist()
        self._check_count(count if inverse == ~count else -1, most)
        return int(count)

    def _check_count(self, count: int, most: int | None = None) -> None:
        most = self.size if most is None else most
        if not 0 <= count <= most:
            raise PayloadError(
                f"what is announced is within 0 and {most}; got {count}. The message is damaged: "
                "run `gradwire doctor`."
            )

    # -- cutting ---------------------------------------------------------------------------

    def ranges(self, n: int) -> Domains:
        return Ranges.even(n, self._world)

    def regions(self, bounds: Sequence[int]) -> Domains:
        return Ranges(bounds)

    def chunks(self) -> Domains:
        return self._chunks

    @cached_property
    def _chunks(self) -> Domains:
        return chunks_or_ranges(self.size, self._world, self._seed, self._device)

    def hashed(self) -> Domains:
        return self._hashed

    @cached_property
    def _hashed(self) -> Domains:
        return HashedElements(self.size, self._world, self._seed, self._device)

    def whole(self, message: Tensor, size: int) -> Tensor:
        if message.numel() != size:
            raise PayloadError(
                f"{size} elements were to arrive; {message.numel()} did. The network or another "
                "collective corrupted the message: run `gradwire doctor`."
            )
        return message

    def sealed(self, content: Tensor) -> Tensor:
        size = self.sealed_bytes(content.numel())
        message = torch.zeros(size, dtype=torch.uint8, device=self._device)
        message[: content.numel()] = content
        seal(message)
        return message

    def unsealed(self, message: Tensor, size: int) -> Tensor:
        check_seals(self.whole(message, self.sealed_bytes(size)).view(1, -1))
        return message[:size]

    def damage_is_told(self) -> AbstractContextManager[None, bool]:
        return _Told(self)

    # -- sums -------------------------------------------------------------------------------

    def average(
        self, n: int, own: Stream, arrived: Mapping[int, Tensor], form: Form = "smallest"
    ) -> Stream:
        with self.damage_is_told():
            parts = {r: self.unpacked(n, own, message, form) for r, message in arrived.items()}
            parts[self._rank] = own
            in_order = [parts[r] for r in range(self._world)]
            return self._sum(n, in_order, float(self._world), self.mean_dtype)
        return self._nothing()

    def merge(self, n: int, one: Stream, other: Stream) -> Stream:
        return self._sum(n, [one, other], 1.0, torch.float32)

    def _sum(self, n: int, parts: Sequence[Stream], divisor: float, dtype: torch.dtype) -> Stream:
        if parts[0].values.dim() > 1:
            ids, rows = [p.places for p in parts], [p.values for p in parts]
            return Stream(*kernels.sum_rows(ids, rows, divisor, dtype))
        most = min(n, sum(part.count for part in parts))
        places = torch.empty(most, dtype=torch.int32, device=self._device)
        values = torch.empty(most, dtype=dtype, device=self._device)
        count = kernels.merge_streams(
            n, [p.places for p in parts], [p.values for p in parts], divisor, places, values
        )
        return Stream(places[:count], values[:count])

    def top(self, one: Stream, other: Stream) -> Stream:
        first = (0, *accumulate(self.counts))
        places = torch.empty(first[-1], dtype=torch.int32, device=self._device)
        values = torch.empty(first[-1], dtype=torch.float32, device=self._device)
        for i, n in enumerate(self._bucket.sizes):
            part, at = slice(first[i], first[i + 1]), self._bucket.offsets[i]
            kernels.top_of_two(
                n, one.places[part] - at, one.values[part], other.places[part] - at,
                other.values[part], self.counts[i], places[part], values[part],
            )  # fmt: skip
            places[part] += at
        return Stream(places, values)

    def check_shares(self, chosen: Stream) -> None:
        counts = [part.count for part in self.by_parameter(chosen)]
        if counts != self.counts:
            raise PayloadError(
                f"of each parameter as many entries are chosen as are sent, {self.counts}; "
                f"{counts} arrived. The message is damaged: run `gradwire doctor`."
            )

    def survivors(self, entries: Stream, among: Stream) -> Tensor:
        kept = torch.empty(entries.count, dtype=torch.bool, device=self._device)
        kernels.contained(entries.places, among.places, kept)
        return kept

    def give_back(self, lost: Stream) -> None:
        for i, part in enumerate(self.by_parameter(lost)):
            if part.count:
                self._lost(i, part)

    # -- results ----------------------------------------------------------------------------

    def write(self, parts: Sequence[Stream]) -> None:
        cut = [self.by_parameter(part) for part in parts]
        for i, mean in enumerate(self._means()):  # a sum of lists that share no place, in one pass
            own = [by_parameter[i] for by_parameter in cut]
            kernels.accumulate(mean, [s.places for s in own], [s.values for s in own], 1.0)

    def write_dense(self, total: Tensor, divisor: float) -> None:
        parts = torch.split(self.whole(total, self.size), list(self._bucket.sizes))
        for mean, part in zip(self._means(), parts):
            kernels.accumulate_dense(mean, [part], divisor)

    def by_parameter(self, stream: Stream) -> list[Stream]:
        if len(self._bucket.sizes) == 1:
            return [stream]
        offsets = torch.tensor(self._bucket.offsets, dtype=torch.int32, device=self._device)
        cuts = [*torch.searchsorted(stream.places, offsets).tolist(), stream.count]
        return [
            Stream(stream.places[begin:end] - at, stream.values[begin:end])
            for at, begin, end in zip(self._bucket.offsets, cuts, cuts[1:])
        ]


class _Told(AbstractContextManager[None, bool]):
    def __init__(self, streams: BucketStreams) -> None:
        self._streams = streams

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, PayloadError):
            return False
        self._streams.damage = error
        return True
