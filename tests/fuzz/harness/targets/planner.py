"""Predicted steps, the search over options on them, and plans for one link."""

from __future__ import annotations

import math
from typing import Any

import torch

from gradwire.kernels import choices, schedule
from gradwire.kernels.jobs import Jobs, Machine
from gradwire.planner import ordered, search, timeline
from gradwire.planner.timeline import Executor, Resource, Stage
from harness.draws import Draw, Made
from harness.targets._register import target


def _seconds(draw: Draw) -> float:
    return draw.one((0.0, 1.0, draw.real(0, 1), draw.real(0, 1e-3), draw.real(0, 10)))


def _options(draw: Draw, most: int) -> list[list[tuple[int, float]]]:
    return [
        [(draw.whole(0, 4), _seconds(draw)) for _ in range(draw.whole(0, 4))]
        for _ in range(draw.whole(1, most))
    ]


def _begins(lists: list[list[Any]]) -> torch.Tensor:
    lengths = torch.tensor([0, *(len(own) for own in lists)])
    return lengths.cumsum(0).int()


def _jobs(draw: Draw, jobs: int = 12, options: int = 4) -> tuple[Made, torch.Tensor, float]:
    """Draws jobs, a choice for each, and when the last is ready."""
    every = [_options(draw, options) for _ in range(draw.whole(0, jobs))]
    flat = [option for own in every for option in own]
    stages = [stage for option in flat for stage in option]
    ready = sorted(_seconds(draw) for _ in every)
    made = Made(Jobs, {
        "ready": torch.tensor(ready, dtype=torch.float64), "option": _begins(every),
        "stage": _begins(flat), "lane": torch.tensor([s[0] for s in stages], dtype=torch.int32),
        "seconds": torch.tensor([s[1] for s in stages], dtype=torch.float64),
    })  # fmt: skip
    choice = torch.tensor([draw.whole(0, len(own) - 1) for own in every], dtype=torch.int32)
    return made, choice, max(ready, default=0.0)


def _machine(draw: Draw, least: float) -> Machine:
    rooms = (1.0, 2.0, math.inf)
    return Machine(
        draw.whole(1, 4), draw.one(rooms), draw.one((0.0, 0.3)), draw.one(rooms),
        least + _seconds(draw), draw.one((1.0, 1.5)), draw.one((0.0, 0.5)), draw.one((0.0, 0.2)),
    )  # fmt: skip


def _step(draw: Draw, jobs: int = 12, options: int = 4) -> dict[str, object]:
    own, choice, last = _jobs(draw, jobs, options)
    return {"jobs": own, "machine": _machine(draw, last), "choice": choice}


def _result(given: dict[str, Any], result: Any) -> object:
    return result


@target(schedule.simulate_step, same=_result)
def _simulate_step(draw: Draw) -> dict[str, object]:
    return _step(draw)


@target(schedule.record_step, same=_result)
def _record_step(draw: Draw) -> dict[str, object]:
    return _step(draw)


@target(schedule.ordered_step, same=_result)
def _ordered_step(draw: Draw) -> dict[str, object]:
    own, choice, last = _jobs(draw)
    return {
        "jobs": own, "choice": choice, "backward_seconds": last + _seconds(draw),
        "by_ready": draw.chance(0.5),
    }  # fmt: skip


def _start(step: dict[str, object]) -> dict[str, object]:
    step["start"] = step.pop("choice")
    return step


def search_options(limit: float, **given: Any) -> object:
    """`search_options` with a limit that is reached soon."""
    return choices.search_options(limit=1e4 if limit > 1e4 else limit, **given)


@target(search_options, name="kernels.choices.search_options", same=None, weight=2)
def _search_options(draw: Draw) -> dict[str, object]:
    return {**_start(_step(draw)), "limit": draw.one((1.0, 30.0, 300.0)), "seed": draw.word()}


@target(choices.exhaust_options, same=lambda given, found: round(found.seconds, 9), weight=2)
def _exhaust_options(draw: Draw) -> dict[str, object]:
    return _start(_step(draw, jobs=5, options=3))


@target(choices.lower_bound, same=None, weight=2)
def _lower_bound(draw: Draw) -> dict[str, object]:
    own = _step(draw)
    del own["choice"]
    return own


@target(choices.undominated, same=None, weight=2)
def _undominated(draw: Draw) -> dict[str, object]:
    return {"jobs": _jobs(draw)[0]}


# -- and the planner's own functions ----------------------------------------------------------


def _stages(draw: Draw) -> tuple[Stage, ...]:
    return tuple(
        Stage(draw.one(list(Resource)), _seconds(draw), draw.one(("encode", "wire", "decode")))
        for _ in range(draw.whole(0, 4))
    )


def _executor(draw: Draw) -> Made:
    own = _machine(draw, 0.0)._asdict()
    return Made(Executor, {**own, "around_seconds": _seconds(draw)})


def _alternatives(draw: Draw) -> list[Made]:
    return [
        Made(search.Alternatives, {
            "ready_seconds": _seconds(draw),
            "options": tuple(_stages(draw) for _ in range(draw.whole(1, 3))),
        }) for _ in range(draw.whole(0, 5))
    ]  # fmt: skip


def _timed(draw: Draw) -> list[Made]:
    return [
        Made(timeline.Job, {"ready_seconds": _seconds(draw), "stages": _stages(draw)})
        for _ in range(draw.whole(0, 8))
    ]


def search_all(limit: float, **given: Any) -> object:
    """`search` with a limit that is reached soon."""
    return search.search(limit=1e4 if limit > 1e4 else limit, **given)


@target(search_all, name="planner.search.search", same=None, weight=1)
def _search(draw: Draw) -> dict[str, object]:
    return {"jobs": _alternatives(draw), "executor": _executor(draw), "limit": 100.0,
            "seed": draw.word()}  # fmt: skip


@target(search.exhaust, same=None, weight=1)
def _exhaust(draw: Draw) -> dict[str, object]:
    return {"jobs": _alternatives(draw), "executor": _executor(draw)}


@target(search.lower_bound, same=None, weight=1)
def _least(draw: Draw) -> dict[str, object]:
    return {"jobs": _alternatives(draw), "executor": _executor(draw)}


@target(timeline.simulate, weight=1, same=lambda given, found: found.end_seconds)
def _simulate(draw: Draw) -> dict[str, object]:
    return {"jobs": _timed(draw), "executor": _executor(draw)}


@target(ordered.ordered, weight=1, same=_result)
def _ordered(draw: Draw) -> dict[str, object]:
    return {"jobs": _timed(draw), "executor": _executor(draw), "by": draw.one(("order", "ready"))}
