"""The heart: what is sent, what is remembered, how it travels: `topk(0.01)+ef | allgather`.

gradient ──► Feedback.before ──► Compressor.encode ──► Collective.rounds ──► average
                  ▲                     │
                  └── Feedback.after ◄──┘  what was not sent waits here for the next step
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.local import Context, Encoder, ForMany, Own, Rounds, Sections, State
from gradwire.member import Claims, Evidence, Key, Member, Recurrence, StepInfo
from gradwire.pairs import Parts, check_promises
from gradwire.registry import parse_strategy

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.member import Moments, UpdateRule
    from gradwire.tasks import Path

__all__ = ["Claims", "Collective", "Compressor", "Context", "Encoder", "Evidence", "Feedback",
           "Key", "Member", "Recurrence", "Rounds", "Sections", "State", "StepInfo",
           "Strategy"]  # fmt: skip


class Compressor(Member, ForMany):
    """What is sent of one parameter. Pure and local; x is 1-D and contiguous, of a float dtype.
    goal: times a copy of its bytes that encoding should take, at most; infinite: not said."""

    goal: ClassVar[float] = float("inf")

    @abstractmethod
    def claims(self, n: int, dtype: str = "float32") -> Claims:
        """The promise for a parameter of n elements of that dtype."""

    @abstractmethod
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        """Write x into the sections; raise status, (1,) int64, if x, or they, are not finite."""

    @abstractmethod
    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        """Overwrite x with what sections of a finite x say. key: `encode`'s, if ranks share it."""

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        """v, fp32, plus factor times what the sections say, in place."""
        sent = v.new_empty(v.shape)
        self.decode(sections, sent, key)
        v.add_(sent, alpha=factor)

    @abstractmethod
    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        """Overwrite x with the sum of the payloads in order, divided once; PayloadError if bad."""

    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        """Places, (k,) int32, ascending, and values of a payload that promises `entries`."""
        raise NotImplementedError(f"{self.name} does not promise entries")

    def places(self, sections: Sections, n: int, key: Key) -> Tensor | None:
        """Which of n elements a payload of this rank's speaks of, as `read`; None: of all."""
        claims = self.claims(n)
        return self.read(sections, n)[0] if claims.entries or claims.elements else None

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        """Feedback (None: without) and encoding in one pass, where there is a kernel for it."""
        return None


class Feedback(Member):
    """What is remembered because it was not sent. State is a dict of named tensors.

    sends_all: only `received` acts. makes_good: what is left out follows, also of owners' means.
    dampens: gradients enter its momentum times 1 - m. shared: states that are equal on all ranks.
    exact_mean: `received` gets fp32. turns: it sends in every so-manieth step. local: at a rank's
    own view. rule: its moments'; "orthogonal" takes whole matrices. optimizer: leaves it these.
    """

    sends_all: ClassVar[bool] = False
    makes_good: ClassVar[bool] = False
    dampens: ClassVar[bool] = False
    exact_mean: ClassVar[bool] = False
    rule: ClassVar[UpdateRule] = "linear"
    optimizer: ClassVar[str] = "SGD"
    shared: ClassVar[tuple[str, ...]] = ()
    turns: int = 1
    local: bool = False

    def recurrence(self) -> Recurrence | None:
        """This feedback as data, for a compressor that can fuse it."""
        return None

    @abstractmethod
    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        """What to encode, and the state on the way there. Changes neither input."""

    @abstractmethod
    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        """The state once `sent`, of all of x, has left."""

    def masked(self, state: State, places: Callable[[], Tensor | None]) -> State:
        """The state of `after`, once these places were sent, whatever their values; None: all."""
        return state

    def received(self, mean: Tensor, state: State) -> State:
        """A last word on the mean, in place, alike on all ranks; not if skipped or not finite."""
        return state

    def moments(self) -> Moments:
        """What it keeps in the optimizer's place; the optimizer must agree, and have none."""
        return {}

    def adopt(self, moments: State) -> State:
        """The state that begins with moments of the average of all ranks' gradients, flat."""
        return moments

    def opening(self, step: int, own: Callable[[], Sequence[Own]], world: int) -> Rounds[bool]:
        """Moves before the collective's; returns whether anything is sent in this step."""
        yield from ()
        return True

    def encoder(self, compressor: Compressor) -> Encoder | None:
        """It and a compressor at work, in place, where it is no recurrence."""
        return None

    def dense(self) -> str | None:
        """The feedback, as text, that gives a tensor that travels dense the same dynamics."""
        return None

    def others(self, strategy: Strategy) -> str | None:
        """The strategy, as text, of what its optimizer treats by another rule, beside this one."""
        return None


class Collective(Member):
    """How payloads travel and are summed: a generator of moves, all local work through ctx.

    needs: promises of `Claims`, or the sum is wrong. partner: its compressor, if only one.
    compresses: itself; its text is a strategy. own_feedback: it remembers what it did not send.
    per_node: ranks to a machine, if it moves over groups of them; 0: as found; None: it does not.
    across: carries machines' sums on. on_host: works there. takes_rows: COO, and gives such; or
    float64. tasks: its path's. selects, compresses_again: less arrives. sizes: of its moves.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    own_feedback: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    compresses_again: ClassVar[bool] = False
    partner: ClassVar[str] = "none"
    per_node: int | None = None
    across: Collective | None = None
    on_host: bool = False
    takes_rows: ClassVar[bool] = False
    sizes: ClassVar[Literal["known", "expected", "measured"]] = "known"
    takes_float64: ClassVar[bool] = False
    compresses: ClassVar[bool] = False
    tasks: ClassVar[Path | None] = None

    @abstractmethod
    def rounds(self, ctx: Context) -> Rounds[None]:
        """Yield moves, receive what arrived, leave the result with ctx."""

    def check(self, parts: Parts) -> None:
        """StrategyError unless it can work in this strategy, whose promises are seen to."""


@dataclass(frozen=True)
class Strategy:
    """Compressor, feedback, collective; refused at construction if they cannot work together."""

    compressor: Compressor
    collective: Collective
    feedback: Feedback | None = None
    alias: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_promises(self.parts)

    @property
    def parts(self) -> Parts:
        """The same, unchecked."""
        return Parts(self.compressor, self.collective, self.feedback, self.alias)

    def __str__(self) -> str:
        return str(self.parts)

    def expand(self) -> Strategy:
        """The same strategy without its alias: `dgc(0.01)` becomes `topk(0.01)+dgc`."""
        return Strategy(self.compressor, self.collective, self.feedback)

    @staticmethod
    def parse(text: str) -> Strategy:
        """Read ``compressor[+feedback] | collective``; StrategyError says what is wrong where."""
        return Strategy(*parse_strategy(text))
