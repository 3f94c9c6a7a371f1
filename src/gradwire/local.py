"""The local work of one rank, as members see it: no network, no order, no timing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from gradwire.member import Key, StepInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradwire.kernels.formats import Format
    from gradwire.kernels.noise import Noise
    from gradwire.moves import AllGather, AllToAll, Move
    from gradwire.strategy import Collective

Sections: TypeAlias = "Sequence[Tensor]"
State: TypeAlias = "MutableMapping[str, Tensor]"

OWNERS_RESIDUAL = "owners_residual"
RIGHT_FACTOR = "right_factor"
THRESHOLD = "threshold"
OF_OTHER_SHAPE = (OWNERS_RESIDUAL, RIGHT_FACTOR, THRESHOLD)
"""State that has not the parameter's shape: of the piece a rank owns, of a factor, a number."""


class Encoder(ABC):
    """Feedback and compressor at work on one parameter."""

    @abstractmethod
    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key
    ) -> bool:
        """Update state, write the sections; True if all was finite. x is not changed."""

    @abstractmethod
    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        """Make the state what it was before this step's `encode`."""

    @abstractmethod
    def give_back(self, state: State, sections: Sections) -> None:
        """Put what this step's `encode` sent back into the state."""

    def release(self) -> None:  # noqa: B027 - most have nothing to forget
        """The step is over: forget what only `undo` and `give_back` need."""


class BlockCodes(NamedTuple):
    """A payload whose blocks are coded one by one, and the dice for them.

    place: which elements of the parameter it speaks of; None: of all.
    """

    form: Format
    codes: Tensor
    scales: Tensor
    noise: Noise
    place: slice | None = None


@dataclass(frozen=True)
class Local:
    """One parameter on this rank. gradient, result: (n,) of one dtype; may be the same memory.

    Or COO, of the parameter's shape, where the collective takes rows.
    """

    name: str
    shape: tuple[int, ...]
    gradient: Tensor
    result: Tensor
    state: State


@dataclass(frozen=True, eq=False)
class Stream:
    """A sparse vector: places, (k,) int32, strictly ascending, and values, (k,).

    Or of rows: then places are rows, and values (k, width).
    """

    places: Tensor
    values: Tensor

    @property
    def count(self) -> int:
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
        """Of the sum of two, the largest: of each parameter as many as `entries` has of it."""

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


class MachineSums(ABC):
    """Local work where every rank owns a part of its machine's mean. In order of use."""

    @abstractmethod
    def scatter(self) -> AllToAll:
        """In the machine: gradients as they are, every part to its owner."""

    @abstractmethod
    def average(self, arrived: Tensor) -> AllGather:
        """The owner's mean, in fp32; then, across machines, whether all was well here."""

    @abstractmethod
    def all_well(self, told: Tensor) -> bool:
        """Whether it was everywhere. If not, nothing crosses: the step is spoiled, or ends in
        PayloadError where `collect` is."""

    @abstractmethod
    def rounds(self) -> Generator[Move, Any, None]:
        """Across machines: the mean of this part, compressed, by the other member's rounds."""

    @abstractmethod
    def gather(self) -> AllGather:
        """In the machine: every owner's result."""

    @abstractmethod
    def collect(self, messages: Tensor) -> None:
        """The result. PayloadError where a rank found damage."""


class Context(ABC):
    """All local work a collective may ask for, on one bucket's gradients."""

    rank: int
    world: int
    ragged: bool
    """Whether the size of a message depends on the data."""
    is_exact: bool
    """Whether gradients themselves are sent, as they are: nothing is remembered or left out."""
    finite: bool
    """False from where a rank's gradients turn out not to be, on all ranks alike."""

    @abstractmethod
    def message(self) -> Tensor:
        """Compress into one checked message: header and sections, 1-D uint8."""

    @abstractmethod
    def length(self) -> Tensor:
        """Bytes of this step's message, (1,) int64; for ragged ones, after `message`."""

    @abstractmethod
    def numbers(self) -> Tensor:
        """Compress into bare numbers whose sum means the sum of the tensors, 1-D."""

    @abstractmethod
    def accumulate(self, messages: Tensor) -> None:
        """The result: the messages, (world, bytes), summed in rank order, divided once."""

    @abstractmethod
    def divide(self, total: Tensor) -> None:
        """The result: the numbers that every rank's `numbers` add up to, divided once."""

    @abstractmethod
    def scatter(self) -> AllToAll:
        """Every parameter in one piece per rank, compressed, each piece for its owner."""

    @abstractmethod
    def reduce(self, arrived: Tensor) -> Tensor:
        """The owner's part: sum in rank order, divide once, compress again: one message.

        With feedback, what the second compression loses waits at the owner for the next step.
        """

    @abstractmethod
    def collect(self, messages: Tensor) -> None:
        """The result: every owner's message, (world, bytes)."""

    @abstractmethod
    def streams(self) -> Streams:
        """The same for payloads that are places and values."""

    def machines(self, outer: Collective) -> MachineSums | None:
        """The same where ranks of a machine sum first, and another member carries the sums on.

        None: no rank shares its machine.
        """
        raise NotImplementedError("only a context that knows of machines")

    @abstractmethod
    def memory(self) -> dict[str, Any]:
        """What a collective keeps about this bucket from step to step; not saved."""

    @abstractmethod
    def room(self, name: str, n: int) -> Tensor:
        """(n,) fp32 of any content, this bucket's until the end of its exchange."""

    @abstractmethod
    def locals(self) -> Sequence[Local]:
        """The parameters themselves, clipped, for methods that compress and sum in one."""

    @abstractmethod
    def commit(self, finite: bool) -> None:
        """The end of such a method: results and states are in place, unless the step is spoiled.

        A state's "residual" lacks what the result holds; if the step is skipped, that goes back.
        """
