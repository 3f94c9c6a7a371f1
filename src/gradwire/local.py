"""The local work of one rank, as members see it: no network, no order, no timing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gradwire.member import Key, StepInfo

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.kernels.formats import Format
    from gradwire.kernels.noise import Noise
    from gradwire.moves import AllToAll

Sections: TypeAlias = "Sequence[Tensor]"
State: TypeAlias = "MutableMapping[str, Tensor]"

OWNERS_RESIDUAL = "owners_residual"
RIGHT_FACTOR = "right_factor"
OF_OTHER_SHAPE = (OWNERS_RESIDUAL, RIGHT_FACTOR)
"""State that has not the parameter's shape: of the piece a rank owns, of a factor."""


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
    """A payload whose blocks are coded one by one, and the dice for them."""

    form: Format
    codes: Tensor
    scales: Tensor
    noise: Noise


@dataclass(frozen=True)
class Local:
    """One parameter on this rank. gradient, result: (n,) of one dtype; may be the same memory."""

    name: str
    shape: tuple[int, ...]
    gradient: Tensor
    result: Tensor
    state: State


class Context(ABC):
    """All local work a collective may ask for, on one bucket's gradients."""

    rank: int
    world: int
    ragged: bool
    """Whether the size of a message depends on the data."""

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
