"""The effect of each part of the planner: predicted steps with one of its freedoms taken away.

    python benchmarks/planner/scaling.py --profiles out/       # or predicted.py … --profile FILE
    python benchmarks/planner/ablations.py out/*.json

Every plan is made for one profile and timed by the same timeline; so this shows what a freedom
gains if the timeline is right (predicted.py), not what a measurement would show.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean

from gradwire.planner.candidates import BF16
from gradwire.planner.choose import choose
from gradwire.planner.profile import Profile
from gradwire.report.table import Table
from gradwire.strategy import Strategy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("profiles", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {path.stem: steps(Profile.load(path)) for path in arguments.profiles}
    rows = [
        (name, f"{1e3 * own['everything']:.1f}", *(_ratio(own, what) for what in WITHOUT))
        for name, own in found.items()
    ]
    means = ("geometric mean", "", *(_mean(found, what) for what in WITHOUT))
    print(Table(("profile", "step, ms", *WITHOUT), [*rows, means]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def steps(profile: Profile) -> dict[str, float]:
    """Returns seconds by what is left out; a row is missing if the profile lacks its
    strategies."""
    found = {"everything": choose(profile).best.seconds}
    for what, seconds in WITHOUT.items():
        if (own := seconds(profile)) is not None:
            found[what] = own
    return found


def _compressing(profile: Profile) -> list[str]:
    return [text for text in profile.strategies if Strategy.parse(text).feedback is not None]


def _only(word: str) -> Callable[[Profile], float | None]:
    """Returns a function that plans with one collective for all that is compressed."""

    def seconds(profile: Profile) -> float | None:
        own = [text for text in _compressing(profile) if text.endswith(f"| {word}")]
        return choose(profile, own).best.seconds if own else None

    return seconds


WITHOUT: Mapping[str, Callable[[Profile], float | None]] = {
    "nothing compressed": lambda p: choose(p, [BF16]).best.seconds,
    "all matrices compressed": lambda p: min(
        choose(p, [text], algorithm="mergecomp", groups=3).best.seconds for text in _compressing(p)
    ),
    "no merging": lambda p: choose(p, algorithm="bytecomp").best.seconds,
    "each by itself": lambda p: choose(p, algorithm="hipress").best.seconds,
    "two groups": lambda p: choose(p, algorithm="mergecomp").best.seconds,
    "one lane": lambda p: choose(p, lanes=[1]).best.seconds,
    "all-gathers": _only("allgather"),
    "all-to-alls": _only("alltoall"),
}


def _ratio(own: Mapping[str, float], what: str) -> str:
    return f"{own[what] / own['everything']:.2f}" if what in own else "–"


def _mean(found: Mapping[str, Mapping[str, float]], what: str) -> str:
    ratios = [own[what] / own["everything"] for own in found.values() if what in own]
    return f"{geometric_mean(ratios):.2f}" if ratios else "–"


if __name__ == "__main__":
    sys.exit(main())
