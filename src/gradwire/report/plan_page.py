"""The page of `gradwire plan --html`: what a step would take, where its time would go, and why.

verdict                 compress, or do not
a step, predicted       bars: the plan, tuned fp32 and bf16
span by span            each of them
group by group          its strategy, what that saves, and what decided
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.report import charts
from gradwire.report.page import Figure, Fold, Grid, Key, Page, Section, Steps
from gradwire.report.run_text import as_milliseconds
from gradwire.report.timeline import Step, timeline
from gradwire.trace import Trace

_KINDS = {
    "compute": "data, forward, optimizer", "backward": "backward",
    "wait": "waits for the exchange",
}  # fmt: skip


_NAMES = {"sgdm": "sgd with momentum"}


@dataclass(frozen=True)
class Way:
    """The prediction of a step by one plan."""

    name: str
    trace: Trace

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of the thread that trains, by kind of work."""
        return {kind: self.trace.seconds(kind) for kind in _KINDS}

    @property
    def seconds(self) -> float:
        """The step's seconds."""
        return sum(self.parts.values())


def plan_page(
    title: str, story: Mapping[str, Any], told: Sequence[str], ways: Sequence[Way], command: str
) -> Page:
    """Returns the page of a plan.

    story: as `Explanation.to_json` writes it; told: its summary, in lines; ways: the plan's step,
    then the steps that it is compared with; command: the command line that repeats it.
    """
    sections = [_steps(ways), *_spans(ways), _groups(story["groups"]), _optimizers(story)]
    sections.append(Section("How to repeat it", [Fold("the command", command)]))
    verdict = story["verdict"]
    return Page(
        title, f"{verdict[:1].upper()}{verdict[1:]}", sections, [_sentence(line) for line in told]
    )


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}."


def _steps(ways: Sequence[Way]) -> Section:
    rows = [(way.name, [charts.Part(*part) for part in way.parts.items()]) for way in ways]
    legend = [Key("box", f"k-{kind}", words) for kind, words in _KINDS.items()]
    heads = ("strategy", "a step, ms", "computes", "waits", "times as long as the plan's")
    own = ways[0].seconds or 1.0
    cells = [
        (
            way.name, as_milliseconds(way.seconds),
            as_milliseconds(way.parts["compute"] + way.parts["backward"]),
            as_milliseconds(way.parts["wait"]), f"{way.seconds / own:.2f}",
        )
        for way in ways
    ]  # fmt: skip
    bars = charts.bars(rows, lambda seconds: f"{as_milliseconds(seconds)} ms")
    return Section("A step, as predicted", [Figure(bars, legend=legend), Grid(heads, cells)])


def _spans(ways: Sequence[Way]) -> list[Section]:
    found = timeline((Step(way.name, way.trace) for way in ways), lambda rank: "")
    words = "The training thread and each lane of one rank; all ranks do the same."
    return [] if found is None else [Section("Span by span", [Steps(found)], [words])]


def _groups(groups: Sequence[Mapping[str, Any]]) -> Section:
    heads = ("group", "strategy", "tensors", "elements", "ready, ms", "averaged, ms", "saves, ms",
             "why")  # fmt: skip
    rows = [
        (
            group["label"], group["strategy"], f"{group['tensors']:,}", f"{group['elements']:,}",
            as_milliseconds(group["ready_seconds"]), as_milliseconds(group["done_seconds"]),
            "" if group["gain_seconds"] is None else as_milliseconds(group["gain_seconds"]),
            group["why"],
        )
        for group in groups
    ]  # fmt: skip
    words = (
        "A group is ready when the last of its gradients is computed, and averaged when all ranks "
        "have its average; both are counted from the start of backward. It saves what the step "
        "would be longer by if this group alone were sent as fp32."
    )
    return Section("Group by group", [Grid(heads, rows, text=(0, 1, 7))], [words])


def _optimizers(story: Mapping[str, Any]) -> Section:
    kinds = {"sound": "learns as much", "unsound": "learns less", "unknown": "not known"}
    begins: Mapping[str, str] = story["begins"]
    rows = [
        (_NAMES.get(name, name), kinds[kind], begins.get(name, ""))
        for name, kind in story["sound_with"].items()
    ]
    heads = ("optimizer", "beside dense training", "begins with")
    return Section("With which optimizer", [Grid(heads, rows, text=(1, 2))])
