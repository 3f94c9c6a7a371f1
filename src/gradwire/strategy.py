"""The central classes: compressor, feedback, collective: `topk(0.01)+ef | allgather`.

gradient ──► Feedback.before ──► Compressor.encode ──► Collective.rounds ──► average
                  ▲                     │
                  └── Feedback.after ◄──┘  the residual (not sent yet) joins the next gradient
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
    goal: encoding should take at most so many times as long as copying x; infinite: no goal."""

    goal: ClassVar[float] = float("inf")

    @abstractmethod
    def claims(self, n: int, dtype: str = "float32") -> Claims:
        """Returns what is promised for a parameter of n elements of that dtype."""

    @abstractmethod
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        """Write x into the sections; raise status, (1,) int64, if x or they are not finite."""

    @abstractmethod
    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        """Decode the sections of a finite x into x. key: `encode`'s, if ranks share it."""

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        """Add factor times the decoded sections to v, fp32, in place."""
        sent = v.new_empty(v.shape)
        self.decode(sections, sent, key)
        v.add_(sent, alpha=factor)

    @abstractmethod
    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        """Overwrite x with the sum of the payloads in order, divided once; PayloadError if bad."""

    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        """Returns places, (k,) int32, ascending, and values of a payload that has `entries`."""
        raise NotImplementedError(f"{self.name} does not promise entries")

    def places(self, sections: Sections, n: int, key: Key) -> Tensor | None:
        """Returns the indices of the elements in this rank's payload, as `read`; None: all n."""
        claims = self.claims(n)
        return self.read(sections, n)[0] if claims.entries or claims.elements else None

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        """Returns an encoder that fuses feedback (None: without) and encoding, if there is one."""
        return None


class Feedback(Member):
    """What a rank remembers because it was not sent. State is a dict of named tensors.

    sends_all: only `received` acts. makes_good: residuals are sent later, those of owners too.
    dampens: gradients enter its momentum times 1 - m. shared: states that are equal on all ranks.
    exact_mean: `received` gets fp32. turns: sends once in so many steps. local: uses the own view.
    rule: of its moments; "orthogonal" needs whole matrices. optimizer: whose moments it keeps.
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
        """Returns what to encode, and the intermediate state. Changes neither input."""

    @abstractmethod
    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        """Returns the state after `sent`, a part of x, was sent. `before` returned x and state."""

    def masked(self, state: State, places: Callable[[], Tensor | None]) -> State:
        """Returns `after`'s state, masked at sent places, whatever their values; None: at all."""
        return state

    def received(self, mean: Tensor, state: State) -> State:
        """Change a finite mean in place, alike on all ranks; not called in a skipped step."""
        return state

    def moments(self) -> Moments:
        """Returns the moments that it keeps for the optimizer, which then must have none."""
        return {}

    def adopt(self, moments: State) -> State:
        """Returns a state that begins with moments of the averaged gradients, flat."""
        return moments

    def opening(self, step: int, own: Callable[[], Sequence[Own]], world: int) -> Rounds[bool]:
        """Yield moves before the collective's; return whether this step sends anything."""
        yield from ()
        return True

    def encoder(self, compressor: Compressor) -> Encoder | None:
        """Returns an in-place encoder with this compressor, for feedback without recurrence."""
        return None

    def dense(self) -> str | None:
        """Returns the feedback, as text, that gives a dense tensor the same dynamics."""
        return None

    def others(self, strategy: Strategy) -> str | None:
        """Returns the strategy, as text, for parameters that the optimizer treats differently."""
        return None


class Collective(Member):
    """How payloads travel and are summed: a generator of moves, all local work through ctx.

    needs: `Claims` that its sum relies on. partner: the compressor, if only one works.
    compresses: it does so itself; its text is a strategy. own_feedback: it keeps residuals itself.
    per_node: ranks of a machine, if it has groups of them; 0: as found; None: it has no groups.
    across: the collective between machines. on_host: works in host memory. takes_*: rows (COO in
    and out), float64. tasks: its path. selects, compresses_again: it loses more. sizes: whether
    moves' sizes are known, expected by the density, or measured on data.
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
        """Yield moves, receive what arrives for each, and leave the result with ctx."""

    def check(self, parts: Parts) -> None:
        """Raise StrategyError unless it works in this strategy; `needs` are checked already."""


@dataclass(frozen=True)
class Strategy:
    """A compressor, a feedback, a collective; `parse` makes one of a text. StrategyError if they
    cannot work together."""

    compressor: Compressor
    collective: Collective
    feedback: Feedback | None = None
    alias: str | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_promises(Parts(self.compressor, self.collective, self.feedback))

    def __str__(self) -> str:
        return str(Parts(self.compressor, self.collective, self.feedback, self.alias))

    def expand(self) -> Strategy:
        """The same strategy without its alias: `dgc(0.01)` becomes `topk(0.01)+dgc`."""
        return replace(self)

    @staticmethod
    def parse(text: str) -> Strategy:
        """Read ``compressor[+feedback] | collective``; StrategyError says what is wrong where."""
        *parts, alias = parse_strategy(text)
        object.__setattr__(made := Strategy(*parts), "alias", alias)
        return made  # `dataclasses.replace` drops the alias
