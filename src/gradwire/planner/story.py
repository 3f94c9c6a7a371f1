"""A plan's story: the verdict first, then group by group; as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from gradwire.document import Document
from gradwire.errors import PlanError
from gradwire.planner.candidates import BF16, FP32
from gradwire.planner.timeline import ratio
from gradwire.report.terminal import plain
from gradwire.schema import List, Made, Map, Maybe, Number, Table, Text, Whole
from gradwire.soundness import ONE_OF_EACH_RULE, Verdict, answering, name_of, sound
from gradwire.strategy import Strategy

_MANY = 4  # from so many alike groups on, one paragraph tells all
_FEW = 0.01  # the share of a step from which on it is told what slows backward
_NAMES = {FP32: "fp32", BF16: "bf16"}


@dataclass(frozen=True)
class Group:
    """One bucket of a plan. Times are seconds from the start of backward. gain_seconds: against
    fp32; None if that was not measured. decided_by: "gain", "hidden", "pause", "work", "budget",
    "little", "enough", "vectors", "rows", "only" or "search"; why: the reason in a sentence."""

    label: str
    tensors: int
    elements: int
    strategy: str
    ready_seconds: float
    done_seconds: float
    gain_seconds: float | None
    decided_by: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """A plan's story. baselines: seconds of a step with each tuned baseline; exposed_seconds: the
    part of the step that is communication alone; slowed_seconds: the part of backward that would
    not be without communication beside it. error: of a step's average; None: not known."""

    verdict: str
    seconds: float
    backward_seconds: float
    exposed_seconds: float
    baselines: Mapping[str, float]
    lower_bound: float
    workers: int
    hosts: int
    algorithm: str
    error: float | None
    error_budget: float | None
    groups: tuple[Group, ...]
    slowed_seconds: float = 0.0

    @property
    def gap(self) -> float:
        """How much longer the step is than the lower bound: no plan gains more."""
        return ratio(self.seconds, self.lower_bound) - 1.0

    @property
    def sound_with(self) -> dict[str, str]:
        """Maps optimizers, one of each update rule, to what is known of all groups with it:
        "sound", "unsound" or "unknown"."""
        kinds = ("unsound", "unknown", "sound")  # the worst decides
        return {
            optimizer: min((v.kind for v in verdicts), key=kinds.index, default="unknown")
            for optimizer, verdicts in self._verdicts.items()
        }

    @property
    def begins(self) -> dict[str, str]:
        """Maps the optimizers of `sound_with` that need another strategy in the first steps to be
        sound, to a text that names it."""
        return {
            optimizer: known.first
            for optimizer, verdicts in self._verdicts.items()
            if self.sound_with[optimizer] == "sound"
            for known in (verdict.evidence for verdict in verdicts)
            if known is not None and known.warmup
        }

    @cached_property
    def _verdicts(self) -> dict[str, list[Verdict]]:
        return {name: [sound(own, name) for own in self._judged] for name in ONE_OF_EACH_RULE}

    @cached_property
    def _judged(self) -> list[Strategy]:
        return answering(Strategy.parse(group.strategy) for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        more = {"gap": self.gap, "sound_with": self.sound_with, "begins": self.begins}
        return {**asdict(self), **more}

    def as_text(self) -> str:
        """Returns the story as text for people."""
        lines = [self.verdict, *(f"  {line}" for line in self.summary)]
        number = 1
        for run in _runs(self.groups):
            is_one = len(run) == 1
            lines += ["", *(_paragraph(number, run[0]) if is_one else _several(number, run))]
            number += len(run)
        return "\n".join(lines)

    @property
    def summary(self) -> list[str]:
        """Lines about the plan as a whole: a step's time, and the optimizers it is sound with."""
        tuned = ", ".join(f"tuned {_NAMES.get(k, k)} {ms(v)}" for k, v in self.baselines.items())
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        ranks = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        is_slowed = self.slowed_seconds >= _FEW * self.seconds
        slowed = f", {ms(self.slowed_seconds)} longer than alone" if is_slowed else ""
        lines = [
            f"step {ms(self.seconds)}{f' ({tuned})' if tuned else ''}, {ranks} on {hosts}",
            f"backward {ms(self.backward_seconds)}{slowed}; {ms(self.exposed_seconds)} of "
            "communication are left when it is over",
        ]
        if self.error is not None:
            budget = "" if self.error_budget is None else f", of a budget of {self.error_budget:g}"
            lines.append(f"error of a step's average {self.error:.2g}{budget}")
        lines.append(
            f"no plan of these strategies can be shorter than {ms(self.lower_bound)}: at most "
            f"{plain(100 * max(0.0, self.gap), 2)} % is left to gain"
        )
        found = self.sound_with.items()
        known = {kind: [name_of(name) for name, own in found if own == kind] for _, kind in found}
        words = {"sound": "sound with", "unsound": "learns less with", "unknown": "not known with"}
        said = (f"{words[kind]} {', '.join(names)}" for kind, names in known.items())
        lines.append("; ".join(said))
        for begin in dict.fromkeys(self.begins.values()):
            named = [name_of(name) for name, how in self.begins.items() if how == begin]
            lines.append(f"with {', '.join(named)}, begin by {begin}")
        keepers = (strategy.feedback for strategy in self._judged if strategy.feedback)
        if keeper := next((feedback for feedback in keepers if feedback.moments()), None):
            lines.append(f"the plan keeps the momentum: step by gradwire.optim.{keeper.optimizer}")
        return lines


def _explanation(groups: list[Group], **own: Any) -> Explanation:
    return Explanation(groups=tuple(groups), **own)


def _strategy(text: str) -> str:
    """Returns the text. Raises StrategyError unless it is a strategy."""
    Strategy.parse(text)
    return text


_COUNT, _NUMBER = Whole(0, 1 << 62), Number()
_GROUP = Table(
    {
        **dict.fromkeys(("label", "decided_by", "why"), Text()),
        "strategy": Made(Text(), _strategy),
        **dict.fromkeys(("tensors", "elements"), _COUNT),
        **dict.fromkeys(("ready_seconds", "done_seconds"), _NUMBER),
        "gain_seconds": Maybe(_NUMBER),
    },
    make=Group,
)
_TIMES = ("seconds", "backward_seconds", "exposed_seconds", "lower_bound")
PREDICTION = Document(
    "a plan's prediction",
    Table(
        {
            "verdict": Text(), "algorithm": Text(), **dict.fromkeys(_TIMES, _NUMBER),
            "baselines": Map(_NUMBER), "workers": _COUNT, "hosts": _COUNT,
            "error": Maybe(_NUMBER), "error_budget": Maybe(_NUMBER), "groups": List(_GROUP),
        },
        {"slowed_seconds": _NUMBER},  # older versions lack it
        make=_explanation,
    ),
    PlanError, "Plan again, or explain it with --profile",
)  # fmt: skip
"""The document that `Explanation.to_json` writes."""


def _runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yields runs: many neighbours with one strategy and one reason together, others alone."""
    for _, alike in groupby(groups, key=lambda group: (group.strategy, group.decided_by)):
        run = list(alike)
        yield from [run] if len(run) >= _MANY else ([group] for group in run)


def _several(number: int, groups: Sequence[Group]) -> list[str]:
    first, last = groups[0], groups[-1]
    tensors, elements = sum(g.tensors for g in groups), sum(g.elements for g in groups)
    gains = sorted(g.gain_seconds for g in groups if g.gain_seconds is not None)
    times = f"ready at {ms(first.ready_seconds)} to {ms(last.ready_seconds)}, averaged at "
    times += f"{ms(first.done_seconds)} to {ms(last.done_seconds)}"
    if gains and first.decided_by != "rows":
        times += f"; each gains {ms(gains[0])} to {ms(gains[-1])} against fp32"
    return [
        f"{number} to {number + len(groups) - 1}. {first.label} and {len(groups) - 1} more, to "
        f"{last.label} ({tensors} tensors, {_count(elements)} elements): {first.strategy}",
        f"   {times}", f"   why: {first.why}", "   The others likewise; --json has each.",
    ]  # fmt: skip


def _paragraph(number: int, group: Group) -> list[str]:
    count = "1 tensor" if group.tensors == 1 else f"{group.tensors} tensors"
    times = f"ready at {ms(group.ready_seconds)}, averaged at {ms(group.done_seconds)}"
    if group.gain_seconds is not None and group.decided_by != "rows":
        times += f"; {_gain(group.gain_seconds)} against fp32 for this group alone"
    return [
        f"{number}. {group.label} ({count}, {_count(group.elements)} elements): {group.strategy}",
        f"   {times}", f"   why: {group.why}",
    ]  # fmt: skip


def _gain(seconds: float) -> str:
    return f"saves {ms(seconds)}" if seconds >= 0 else f"costs {ms(-seconds)}"


def ms(seconds: float) -> str:
    """Returns a time in three digits."""
    if seconds >= 1.0:
        return f"{plain(seconds)} s"
    return f"{plain(1e3 * seconds)} ms"


def _count(n: int) -> str:
    return f"{plain(n / 1e6)} M" if n >= 1e6 else f"{n:,}"
