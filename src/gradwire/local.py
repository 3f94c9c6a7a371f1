"""The local work of one rank, as members see it: without network, order or timing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import is_
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
"""A generator of moves; what arrives for each is sent back into it. T: what it returns."""

RESIDUAL, ESTIMATE, MEAN = "residual", "estimate", "mean"
"""What a feedback has not sent; or, if it sends differences, the sum of what it has sent, and the
mean of all ranks' sums."""
OWNERS_RESIDUAL = "owners_residual"
RIGHT_FACTOR = "right_factor"
THRESHOLD = "threshold"
LATER_RESIDUALS = ("residual/1", "residual/2", "residual/3")
OF_COLLECTIVE = (OWNERS_RESIDUAL, RIGHT_FACTOR, THRESHOLD, *LATER_RESIDUALS)
"""State that belongs to the collective, not to the feedback."""
STEPS, NOISE = "steps", "noise"
ON_HOST = (STEPS, NOISE)
"""State that is kept on the host, which computes with it: no device has to be waited for."""
MOMENTS = (STEPS, "exp_avg", "exp_avg_sq")
"""The moments that `adam` keeps of a rank's own gradient; they are no residual."""
OF_OTHER_SHAPE = (*OF_COLLECTIVE, STEPS, NOISE)
"""State whose shape is not the parameter's: of the piece a rank owns, of a factor, of what is
compressed again; and single numbers."""


def is_waiting(key: str) -> bool:
    """Whether a state of that name is a residual: a sum that has not been sent yet."""
    return key.startswith("residual") or key == OWNERS_RESIDUAL


class Encoder(ABC):
    """Applies feedback and compressor to one parameter, in place."""

    @abstractmethod
    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        """Update the state and write the sections. If something is not finite, raise the status,
        (1,) int64: `undo` is called then. x is not changed."""

    @abstractmethod
    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        """Restore the state to what it was before this step's `encode`."""

    @abstractmethod
    def give_back(self, state: State, sections: Sections) -> None:
        """Put the values that this step's `encode` sent back into the state."""

    def work(
        self, own: Own, sections: Sections, status: Tensor
    ) -> Generator[Sequence[Any], Sequence[Any], None]:
        """`encode` for many parameters at once (`kernels.together`): a generator that yields the
        segments of kernel calls, so that one call does them for all parameters."""
        self.encode(own.gradient, own.state, sections, own.info, own.key, status)
        yield from ()

    def undoing(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo
    ) -> Sequence[UndoTopk]:
        """`undo` for many parameters at once. Returns the rest, for `kernels.undo_many_topk`."""
        self.undo(x, state, sections, info)
        return ()

    def giving_back(self, state: State, sections: Sections) -> Sequence[UndoTopk]:
        """`give_back` for many parameters at once. Returns the rest, as `undoing` does."""
        self.give_back(state, sections)
        return ()

    def release(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forget, after a step, what only `undo` and `give_back` need."""


class BlockCodes(NamedTuple):
    """A payload whose blocks are coded one by one, and its random numbers.

    place: the elements of the parameter that it describes; None: all. clip: see `encode_codes`.
    """

    form: Format
    codes: Tensor
    scales: Tensor
    noise: Noise
    place: slice | None = None
    clip: float | None = None


class KeptParts:
    """Parts of tensors that are cut again only if the tensors, their memory or the places change:
    the same objects in every step, which kernels then know."""

    def __init__(self) -> None:
        self._tensors: Sequence[Tensor | None] = ()
        self._facts: object = None
        self._parts: Sequence[Sequence[Any]] = ()

    def cut(
        self, tensors: Sequence[Tensor | None], places: Sequence[slice | None]
    ) -> Sequence[Sequence[Any]]:
        """Returns the tensors' parts, by place. A place of None is all of a tensor; None has no
        parts, and stands for itself."""
        facts = [None if x is None else x.data_ptr() for x in tensors], list(places)
        if facts != self._facts or not all(map(is_, self._tensors, tensors)):
            self._tensors, self._facts = list(tensors), facts
            self._parts = [
                [x if x is None or at is None else x[at] for x in tensors] for at in places
            ]
        return self._parts


class ForMany:
    """The methods of a compressor that lets one kernel call work on many parameters."""

    def casts(self) -> bool:
        """Whether `encode` does nothing but `kernels.cast` into its one section."""
        return False

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        """Returns the sections as block codes, if `encode` does nothing but write these."""
        return ()

    def encoding(
        self, x: Tensor, sections: Sections, key: Key, status: Tensor
    ) -> Generator[Sequence[Any], Sequence[Any], Added]:
        """`encode` for many parameters at once (`Encoder.work`). Returns a function that adds a
        multiple of the payload to a vector, as `add` does, without reading the payload's size."""
        raise NotImplementedError

    def added(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key
    ) -> Sequence[SumSegment]:
        """Returns the kernel segments of `accumulate`, if it does nothing else. PayloadError."""
        return ()


@cache
def stands_for(kind: type, many: str, one: str) -> bool:
    """Whether a class's method for many parameters does the same as its method for one. It need
    not, where a derived class overrides the latter alone."""

    def place(name: str) -> int:
        return next(i for i, base in enumerate(kind.__mro__) if name in vars(base))

    return place(many) <= place(one)


class Own(NamedTuple):
    """The input of one parameter on this rank to a step. gradient: (n,), before clipping."""

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

    Both may be COO, of the parameter's shape, if the collective takes rows.
    """

    name: str
    shape: tuple[int, ...]
    gradient: Tensor
    result: Tensor
    state: State


class Streams(ABC):
    """One rank's access to a bucket whose payloads are places and values.

    size: elements of the flat vector of all parameters; parameters: the range of each.
    mean_dtype: the dtype of averages. counts: the number of entries of each parameter.
    remembered: by name (OF_OTHER_SHAPE), one number for each parameter, kept in its state for
    later steps; 0 if there is none; in fp32; not kept if this step is skipped.
    damage: an error in what arrived. The next `tell` reports it to all ranks, so that none waits
    for a rank that stopped. luggage: the bytes that came with the last `tell`, by rank.
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
        """Compress. Empty if this rank's gradients are not finite. Rows are returned whole."""

    @abstractmethod
    def tell(
        self, *numbers: int, most: int | None = None, finite: bool = True,
        luggage: Tensor | None = None,
    ) -> Rounds[list[list[int]] | None]:  # fmt: skip
        """Gather numbers, equally many from each rank, in one move. Returns them by rank.

        finite: whether gradients that `entries` did not read are finite. Returns None if some
        rank's are not, and the step is over: results are NaN, states as before. Raises
        PayloadError if a rank found damage, or a number is not from 0 to `most` (None: size).
        luggage: bytes to send along, (m,) uint8, with m the same multiple of 8 on every rank.
        Those of all ranks are in `luggage` afterwards, (world, m).
        """

    @abstractmethod
    def write(self, means: Sequence[Stream] | Tensor) -> None:
        """Set the result: averages at places of the flat vector, else 0; or all, (size,)."""

    @abstractmethod
    def give_back(self, lost: Stream) -> None:
        """Put entries of this rank that are not in the result back into its state."""

    def waiting(self, at: Stream) -> Tensor:
        """Returns the residual that `entries` left at a stream's places, (k,) fp32; zeros without
        feedback. It stays in the state: give back its negative to remove it."""
        return at.values.new_zeros(at.count)


class Context(ABC):
    """All local work that a collective may request, on one bucket's gradients.

    ragged: the size of a message depends on the data. length: tells the bytes of this step's
    `message`, after its call (`streams.longest`), (2,) int64. is_exact: gradients are sent as they
    are, without loss or feedback. has_rows: gradients and results are COO, and `streams` are of
    rows. memory: what a collective keeps about this bucket from step to step; not saved, and empty
    after a restart or a regrouping, on all ranks alike.
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
        """False once it is known that some rank's gradients are not finite; alike on all ranks."""
        return True

    @abstractmethod
    def message(self) -> Tensor:
        """Compress into one checked message: header and sections, 1-D uint8."""

    @abstractmethod
    def accumulate(self, messages: Tensor) -> None:
        """Set the result: the messages, (world, bytes), summed in rank order, divided once."""

    @abstractmethod
    def numbers(self) -> Tensor:
        """Compress into numbers whose sum over ranks decodes to the sum of the tensors, 1-D."""

    @abstractmethod
    def divide(self, total: Tensor) -> None:
        """Set the result: the sum of all ranks' `numbers`, divided once."""

    @abstractmethod
    def scatter(self, means: Any = None) -> AllToAll:
        """Returns the move that sends every parameter's pieces, compressed, to their owners.

        means: the `Compressor` that owners use instead, the same in every step.
        """

    @abstractmethod
    def reduce(self, arrived: Tensor) -> Tensor:
        """Do an owner's work: sum in rank order, divide once, compress again into one message.

        With feedback, the owner keeps a residual of the second compression for the next step.
        """

    @abstractmethod
    def collect(self, messages: Tensor) -> None:
        """Set the result from every owner's message, (world, bytes)."""

    @abstractmethod
    def locals(self, uses: int = 1) -> Sequence[Local]:
        """Returns the parameters, clipped, for methods that compress and sum in one. uses: how
        often each element is used before the first move and after the last; only for pricing."""

    @abstractmethod
    def commit(
        self, status: Tensor, states: Mapping[str, State], sent: Mapping[str, Tensor] | None = None
    ) -> None:
        """End such a method, once results are in place. They count unless the status, (1,) int64
        and alike on all ranks, is raised. states: what to set in the state of each parameter.

        sent: what was subtracted from each "residual" there; None: the result. If the step is
        skipped, it is added to the residual again.
        """

    @abstractmethod
    def room(self, name: str, n: int) -> Tensor:
        """Returns a buffer, (n,) fp32 of any content, for this bucket until its exchange ends."""

    def through_machines(self, outer: Any) -> Rounds[None]:
        """Sum inside each machine, then average the machines' means by the `Collective` outer.
        Here every rank is a machine of its own."""
        yield from outer.rounds(self)

    def along_path(self) -> Rounds[None]:
        """Run the tasks of the collective's path, one after the other."""
        raise NotImplementedError("only a context that knows a path")
