"""The local work of one rank, as members see it: no network, no order, no timing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from gradwire.member import Key, StepInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradwire.errors import PayloadError
    from gradwire.kernels.formats import Format
    from gradwire.kernels.segments import UndoTopk
    from gradwire.kernels.sums import SumSegment
    from gradwire.kernels.values import Noise
    from gradwire.moves import AllToAll, Move
    from gradwire.streams import Domains, Stream

Sections: TypeAlias = "Sequence[Tensor]"
State: TypeAlias = "MutableMapping[str, Tensor]"
T = TypeVar("T")
Added: TypeAlias = "Callable[[Tensor, float], None]"
Rounds: TypeAlias = "Generator[Move, Any, T]"
"""Moves, asked for one by one, each answered by what arrives; T is what comes of them."""

OWNERS_RESIDUAL = "owners_residual"
RIGHT_FACTOR = "right_factor"
THRESHOLD = "threshold"
LATER_RESIDUALS = ("residual/1", "residual/2", "residual/3")
OF_COLLECTIVE = (OWNERS_RESIDUAL, RIGHT_FACTOR, THRESHOLD, *LATER_RESIDUALS)
"""State that is a collective's, not the feedback's."""
STEPS, NOISE = "steps", "noise"
ON_HOST = (STEPS, NOISE)
"""Numbers that the host takes into its account: a device would have to be waited for."""
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
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        """Update state, write the sections; raise the status, (1,) int64, if something is not
        finite: then `undo` follows. x is not changed."""

    @abstractmethod
    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        """Make the state what it was before this step's `encode`."""

    @abstractmethod
    def give_back(self, state: State, sections: Sections) -> None:
        """Put what this step's `encode` sent back into the state."""

    def work(
        self, own: Own, sections: Sections, status: Tensor
    ) -> Generator[Sequence[Any], Sequence[Any], None]:
        """`encode`, beside other parameters' (`kernels.together`): what a kernel does for all of
        them in one call is asked for in segments."""
        self.encode(own.gradient, own.state, sections, own.info, own.key, status)
        yield from ()

    def undoing(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo
    ) -> Sequence[UndoTopk]:
        """`undo`, beside other parameters': what of it is left for `kernels.undo_many_topk`."""
        self.undo(x, state, sections, info)
        return ()

    def giving_back(self, state: State, sections: Sections) -> Sequence[UndoTopk]:
        """`give_back`, as `undoing` is `undo`."""
        self.give_back(state, sections)
        return ()

    def release(self) -> None:  # noqa: B027 - most have nothing to forget
        """The step is over: forget what only `undo` and `give_back` need."""


class BlockCodes(NamedTuple):
    """A payload whose blocks are coded one by one, and the dice for them.

    place: which elements of the parameter it speaks of; None: of all. clip: as of `encode_codes`.
    """

    form: Format
    codes: Tensor
    scales: Tensor
    noise: Noise
    place: slice | None = None
    clip: float | None = None


class ForMany:
    """What kernels do for many parameters in one call, of a compressor that lets them."""

    def casts(self) -> bool:
        """Whether all that `encode` does is `kernels.cast` into its one section."""
        return False

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        """The sections as block codes, if they are such, and all that `encode` does."""
        return ()

    def encoding(
        self, x: Tensor, sections: Sections, key: Key, status: Tensor
    ) -> Generator[Sequence[Any], Sequence[Any], Added]:
        """What `encode` does, beside other parameters' (`Encoder.work`). Returns what adds to a
        vector, so many times, what was written: `add`, of which it is known how long it is."""
        raise NotImplementedError

    def added(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key
    ) -> Sequence[SumSegment]:
        """What `accumulate` asks kernels for, if that is all it does. Raises PayloadError."""
        return ()


@cache
def stands_for(kind: type, many: str, one: str) -> bool:
    """Whether a class's method for many says what its method for one does: who derives from a
    class that says so may do otherwise."""

    def place(name: str) -> int:
        return next(i for i, base in enumerate(kind.__mro__) if name in vars(base))

    return place(many) <= place(one)


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


class Streams(ABC):
    """What one rank has and hears of a bucket whose payloads are places and values.

    size: elements of the flat vector, parameter after parameter; parameters: where each lies.
    mean_dtype: of averages. counts: how many entries `entries` has of each parameter.
    remembered: by name (OF_OTHER_SHAPE), numbers of each parameter for later steps, from its
    state, 0 where there are none; in fp32, and not if this step is skipped.
    damage: of what arrived; the next `tell` says so, so that no rank waits for one that stopped.
    luggage: what went along with the last `tell`, by rank.
    """

    size: int
    parameters: Domains
    mean_dtype: torch.dtype
    counts: Sequence[int]
    remembered: dict[str, Sequence[float]]
    damage: PayloadError | None
    luggage: Tensor

    @abstractmethod
    def entries(self) -> Stream:
        """Compress. Nothing, if this rank's gradients are not finite. Of rows: all there are."""

    @abstractmethod
    def tell(
        self, *numbers: int, most: int | None = None, finite: bool = True,
        luggage: Tensor | None = None,
    ) -> Rounds[list[list[int]] | None]:  # fmt: skip
        """Tell all ranks these numbers, as many of them everywhere, in one move; what each told.

        finite: whether all gradients are, beside those that `entries` looked at. None: some
        rank's are not, and the step is over: results are NaN, states as they were. PayloadError
        where a rank found damage, or told a number that is not within 0 and `most` (None: size).
        luggage: bytes that go along, (m,) uint8 with m the same multiple of 8 on every rank;
        those of all are in `luggage` then, (world, m).
        """

    @abstractmethod
    def write(self, means: Sequence[Stream] | Tensor) -> None:
        """The result: averages by place in the flat vector, zeros elsewhere; or all, (size,)."""

    @abstractmethod
    def give_back(self, lost: Stream) -> None:
        """Entries of this rank's that no result contains go back to where they came from."""

    def waiting(self, at: Stream) -> Tensor:
        """What was left to wait, beside `entries`, at a stream's places, (k,) fp32; zeros where
        nothing is remembered. It waits on, until its negative is given back."""
        return at.values.new_zeros(at.count)


class Context(ABC):
    """All local work a collective may ask for, on one bucket's gradients.

    ragged: the size of a message depends on the data. length: bytes of this step's `message`,
    once that was asked, (1,) int64. is_exact: gradients themselves are sent, as they are: nothing
    is remembered or left out. has_rows: gradients name the rows that they have (COO), and so do
    results; `streams` are of rows. memory: what a collective keeps about this bucket from step to
    step; not saved, and empty after a restart or a regrouping, on all ranks alike.
    """

    rank: int
    world: int
    seed: int
    step: int
    ragged: bool
    is_exact: bool
    has_rows: bool = False
    length: Tensor
    memory: dict[str, Any]
    streams: Streams

    @property
    def finite(self) -> bool:
        """False from where a rank's gradients turn out not to be, on all ranks alike."""
        return True

    @abstractmethod
    def message(self) -> Tensor:
        """Compress into one checked message: header and sections, 1-D uint8."""

    @abstractmethod
    def accumulate(self, messages: Tensor) -> None:
        """The result: the messages, (world, bytes), summed in rank order, divided once."""

    @abstractmethod
    def numbers(self) -> Tensor:
        """Compress into bare numbers whose sum means the sum of the tensors, 1-D."""

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
    def locals(self, uses: int = 1) -> Sequence[Local]:
        """The parameters themselves, clipped, for methods that compress and sum in one. uses: how
        often a number of them is used before the first move, and after the last, for a price."""

    @abstractmethod
    def commit(
        self, status: Tensor, states: Mapping[str, State], sent: Mapping[str, Tensor] | None = None
    ) -> None:
        """The end of such a method: results are in place, and count unless the status, (1,) int64
        and alike on all ranks, is raised. states: by parameter, what is in theirs from then on.

        A "residual" there lacks what was sent, by parameter, or else what the result holds; if the
        step is skipped, that goes back.
        """

    @abstractmethod
    def room(self, name: str, n: int) -> Tensor:
        """(n,) fp32 of any content, this bucket's until the end of its exchange."""

    def through_machines(self, outer: Any) -> Rounds[None]:
        """Ranks of a machine sum first, and another `Collective` carries their means on. Here
        every rank is a machine of its own."""
        yield from outer.rounds(self)

    def along_path(self) -> Rounds[None]:
        """The tasks of the collective's path, one after the other."""
        raise NotImplementedError("only a context that knows a path")
