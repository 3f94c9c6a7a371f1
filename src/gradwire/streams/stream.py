"""Sparse payloads as members see them: streams of places and values, and who owns which places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradwire.moves import AllGather


@dataclass(frozen=True, eq=False)
class Stream:
    """A sparse vector: places, (k,) int32, strictly ascending, and values, (k,).

    Or of rows: then places are rows, and values (k, width).
    """

    places: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.places.numel()


Form: TypeAlias = Literal["smallest", "coo", "bitmap"]
"""How places are packed: as small as can be; int32; a bit per element."""


class Domains(ABC):
    """Which rank owns which elements of a bucket's flat vector: its parameters, end to end."""

    sizes: Sequence[int]
    """How many elements each rank owns: places in its domain are 0 to one less."""

    @abstractmethod
    def split(self, stream: Stream) -> list[Stream]:
        """What falls into each domain, with places in it. Valid until the next split."""

    @abstractmethod
    def flat(self, owner: int, places: Tensor) -> Tensor:
        """Places in an owner's domain as places in the flat vector, ascending, int32."""


class Streams(ABC):
    """Local work on sparse payloads: what is sent, as one stream over the bucket's flat vector.

    A coded stream is bytes: values and places, these in the smallest code for their number, so
    that who knows the number knows the size. A packed one needs no such number, and its code is
    smaller where places come in crowds.
    """

    size: int
    mean_dtype: torch.dtype
    """Elements of the flat vector; the dtype of averages."""
    step: int
    counts: Sequence[int]
    """The step's number; how many entries `entries` has of each parameter."""
    kept: MutableMapping[str, Sequence[int]]
    """From this bucket's last step. After a restart or a regrouping empty, on all ranks alike."""

    @abstractmethod
    def entries(self) -> Stream:
        """Compress. Nothing, if this rank's gradients are not finite."""

    @abstractmethod
    def announce(self, *numbers: int, finite: bool = True) -> AllGather:
        """The move that tells all ranks these numbers, as many of them everywhere.

        finite: whether all gradients are, beside those that `entries` looked at.
        """

    @abstractmethod
    def heard(self, messages: Tensor, most: int | None = None) -> list[list[int]] | None:
        """What each rank announced. None: some rank's gradients are not finite, and the step is
        over: results are NaN, states as they were. PayloadError where a rank found damage, or
        announced a number that is not within 0 and `most` (None: the size)."""

    @abstractmethod
    def ranges(self, n: int) -> Domains:
        """Even, contiguous domains of n elements, or rows."""

    @abstractmethod
    def regions(self, bounds: Sequence[int]) -> Domains:
        """Contiguous domains of the flat vector: from bounds[r] to below bounds[r + 1]."""

    @abstractmethod
    def chunks(self) -> Domains:
        """Chunks of 16 elements, dealt out at random: balanced whatever the tensor."""

    @abstractmethod
    def hashed(self) -> Domains:
        """Elements, each dealt out by its hash: balanced too, 4 bytes of memory per element."""

    @abstractmethod
    def coded(self, n: int, stream: Stream) -> Tensor:
        """The bytes of a stream over n elements, (coded_bytes(n, count, stream),) uint8."""

    @abstractmethod
    def coded_bytes(self, n: int, count: int, like: Stream) -> int:
        """How many bytes a stream of so many entries takes, with values like those of another."""

    @abstractmethod
    def read(self, n: int, count: int, like: Stream, message: Tensor) -> Stream:
        """A coded stream, with values like those of another; PayloadError unless it is one."""

    @abstractmethod
    def packed(self, n: int, stream: Stream, form: Form = "smallest") -> Tensor:
        """A stream over n elements as bytes that say themselves how many entries there are."""

    @abstractmethod
    def most_packed_bytes(self, n: int, like: Stream) -> int:
        """No stream over n elements takes more, with values like those of another."""

    @abstractmethod
    def unpacked(self, n: int, like: Stream, message: Tensor, form: Form = "smallest") -> Stream:
        """A packed stream, with values like those of another; PayloadError unless it is one."""

    @abstractmethod
    def coded_places(self, n: int, places: Tensor) -> Tensor:
        """Places alone, coded: (coded_places_bytes(n, k),) uint8."""

    @abstractmethod
    def coded_places_bytes(self, n: int, count: int) -> int:
        """How many bytes they take."""

    @abstractmethod
    def read_places(self, n: int, count: int, message: Tensor) -> Tensor:
        """(count,) int32; PayloadError unless they are coded so."""

    @abstractmethod
    def whole(self, message: Tensor, size: int) -> Tensor:
        """The message; PayloadError unless it has so many elements."""

    @abstractmethod
    def sealed(self, content: Tensor) -> Tensor:
        """Few bytes that later sizes depend on, (m,) uint8, with their check."""

    @abstractmethod
    def sealed_bytes(self, size: int) -> int:
        """How many bytes such a message has."""

    @abstractmethod
    def unsealed(self, message: Tensor, size: int) -> Tensor:
        """The bytes, (size,); PayloadError unless they are what was sent."""

    @abstractmethod
    def damage_is_told(self) -> AbstractContextManager[None, bool]:
        """Around work on what arrived: PayloadError is remembered, and told by the next
        `announce`, so that no rank waits for one that has stopped."""

    @abstractmethod
    def average(
        self, n: int, own: Stream, arrived: Mapping[int, Tensor], form: Form = "smallest"
    ) -> Stream:
        """The owner's work: own entries and those of each other rank, packed, summed in rank
        order in fp32, divided once by the number of ranks. Zeros are left out.

        `damage_is_told` is around it.
        """

    @abstractmethod
    def merge(self, n: int, one: Stream, other: Stream) -> Stream:
        """The sum of two, fp32, the same to the bit whichever comes first. Zeros are left out."""

    @abstractmethod
    def top(self, one: Stream, other: Stream) -> Stream:
        """The largest entries of the sum of two: of each parameter as many as `entries` has of
        it."""

    @abstractmethod
    def check_shares(self, chosen: Stream) -> None:
        """PayloadError unless it has of each parameter as many entries as `entries` has."""

    @abstractmethod
    def survivors(self, entries: Stream, among: Stream) -> Tensor:
        """(k,) bool: which entries' places are also among the others'."""

    @abstractmethod
    def give_back(self, lost: Stream) -> None:
        """Entries of this rank's that no result contains go back to where they came from."""

    @abstractmethod
    def coded_count(self, count: int) -> Tensor:
        """A number for one rank alone, (16,) uint8."""

    @abstractmethod
    def read_count(self, message: Tensor, most: int) -> int:
        """The number; PayloadError unless it is undamaged, and within 0 and `most`."""

    @abstractmethod
    def by_parameter(self, stream: Stream) -> list[Stream]:
        """A stream over the flat vector as one of each parameter, by place in it."""

    @abstractmethod
    def recall(self, name: str) -> list[float]:
        """A number of each parameter, from its state; 0 where there is none."""

    @abstractmethod
    def remember(self, name: str, numbers: Sequence[float]) -> None:
        """The same for later steps, in fp32, unless this one is skipped. Names: OF_OTHER_SHAPE."""

    @abstractmethod
    def write(self, parts: Sequence[Stream]) -> None:
        """The result: these averages by place in the flat vector, and zeros elsewhere."""

    @abstractmethod
    def write_dense(self, total: Tensor, divisor: float) -> None:
        """The result: all of the flat vector, (size,) fp32, divided."""
