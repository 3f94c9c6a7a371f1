"""The local work of one rank, as members see it: no network, no order, no timing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gradwire.member import Key, StepInfo

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.kernels.formats import Format
    from gradwire.kernels.values import Noise
    from gradwire.moves import AllGather, AllToAll, Move
    from gradwire.streams import Streams

Sections: TypeAlias = "Sequence[Tensor]"
State: TypeAlias = "MutableMapping[str, Tensor]"
Opening: TypeAlias = "Generator[Move, Any, bool]"

OWNERS_RESIDUAL = "owners_residual"
RIGHT_FACTOR = "right_factor"
THRESHOLD = "threshold"
LATER_RESIDUALS = ("residual/1", "residual/2", "residual/3")
OF_COLLECTIVE = (OWNERS_RESIDUAL, RIGHT_FACTOR, THRESHOLD, *LATER_RESIDUALS)
"""State that is a collective's, not the feedback's."""
STEPS, NOISE = "steps", "noise"
MOMENTS = (STEPS, "exp_avg", "exp_avg_sq")
"""What `adam` remembers of a rank's own gradient, which is no sum that waits."""
OF_OTHER_SHAPE = (*OF_COLLECTIVE, STEPS, NOISE)
"""State that has not the parameter's shape: of the piece a rank owns, of a factor, numbers; of
what is compressed again."""


def is_waiting(key: str) -> bool:
    """Whether a state of that name is a sum that waits to be sent."""
    return key.startswith("residual") or key == OWNERS_RESIDUAL


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


class Own(NamedTuple):
    """What one parameter of this rank brings to a step. gradient: (n,), before it is clipped."""

    gradient: Tensor
    state: State
    info: StepInfo
    key: Key

    @property
    def x(self) -> Tensor:
        """The gradient in fp32, clipped."""
        return self.gradient.float() * self.info.clip_scale


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


class MachineSums(ABC):
    """Local work where every rank owns a part of its machine's mean. In order of use."""

    @abstractmethod
    def scatter(self) -> AllToAll:
        """The move inside the machine that brings gradients, as they are, to the owners of their
        parts."""

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
        """The move inside the machine that brings every owner's result to all."""

    @abstractmethod
    def collect(self, messages: Tensor) -> None:
        """The result. PayloadError where a rank found damage."""


class Stages(ABC):
    """Local work along a path of tasks (`gradwire.tasks`)."""

    @abstractmethod
    def moves(self) -> Iterator[Move]:
        """The moves this rank makes, in order; after each, `take` gets what arrived."""

    @abstractmethod
    def take(self, arrived: Tensor) -> None:
        """What the last move brought."""

    @abstractmethod
    def finish(self) -> None:
        """The result. PayloadError where this rank found damage."""


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
    def scatter(self, means: Any = None) -> AllToAll:
        """Every parameter in one piece per rank, compressed, each piece for its owner.

        means: the `Compressor` that owners use, the same in every step, if it is another.
        """

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

    def machines(self, outer: Any) -> MachineSums | None:
        """The same where ranks of a machine sum first, and another `Collective` carries them on.

        None: no rank shares its machine.
        """
        raise NotImplementedError("only a context that knows of machines")

    def stages(self) -> Stages:
        """The same along the path that the collective is."""
        raise NotImplementedError("only a context that knows a path")

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
