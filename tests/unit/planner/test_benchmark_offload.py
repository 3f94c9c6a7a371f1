"""The device or the host's memory: the program that compares plans with their replay."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from types import ModuleType
from typing import Any

import pytest

from gradwire.buckets import Bucket, Parameter
from gradwire.strategy import Strategy
from scripts import BENCHMARKS, script

RESULTS = BENCHMARKS / "gpu" / "results"


@pytest.fixture(scope="module")
def program() -> Iterator[ModuleType]:
    with script("gpu", "offload", "recorded", "replayed") as found:
        yield found


@pytest.fixture
def machine(program: ModuleType) -> Any:
    return program.Machine(program.Times.load(), 1e9, 4, 2, 1)


def seconds(program: ModuleType, machine: Any, *buckets: tuple[float, list[Any]]) -> float:
    """Seconds, with 1 s of backward. buckets: (ready, stages of activities as (parts,
    seconds))."""
    part, activity = (getattr(sys.modules["replayed"], name) for name in ("Part", "Activity"))
    made = [
        (ready, [
            tuple(activity(tuple(part[x] for x in on.split()), own) for on, own in stage)
            for stage in stages
        ])
        for ready, stages in buckets
    ]  # fmt: skip
    return float(program.replay(machine, made, 1.0))


def test_what_needs_different_parts_goes_on_at_once(program: ModuleType, machine: Any) -> None:
    assert seconds(program, machine) == pytest.approx(1.0)
    assert seconds(program, machine, (0.5, [[("LINK", 2.0)]])) == pytest.approx(2.5)
    both = [[("CORES", 0.25), ("DOWN", 0.5)], [("UP", 0.25)]]
    assert seconds(program, machine, (1.0, both)) == pytest.approx(1.75)


def test_a_device_is_shared_with_backward(program: ModuleType, machine: Any) -> None:
    """A device runs each at half its speed; and a bucket is ready later if backward is slower."""
    work = [[("DEVICE", 1.0)]]
    assert seconds(program, machine, (0.0, work)) == pytest.approx(2.0)
    late = seconds(program, replace(machine, lanes=2), (0.0, work), (0.5, [[("LINK", 2.0)]]))
    assert late == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize(("cores", "wanted"), [(1, 2.0), (2, 1.0)])
def test_few_cores_are_shared(
    program: ModuleType, machine: Any, cores: int, wanted: float
) -> None:
    own = replace(machine, cores=cores)
    assert seconds(program, own, (0.0, [[("CORES", 1.0)]])) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("parts", "lanes", "wanted"),
    [
        ("LINK LINK", 1, 3.0),
        ("LINK LINK", 2, 3.0),
        ("UP DOWN", 1, 3.0),
        ("UP DOWN", 2, 2.0),
    ],
)
def test_lanes_take_turns_and_share(
    program: ModuleType, machine: Any, parts: str, lanes: int, wanted: float
) -> None:
    """Two buckets, of a second each, are ready when backward ends."""
    buckets = [(1.0, [[(part, 1.0)]]) for part in parts.split()]
    assert seconds(program, replace(machine, lanes=lanes), *buckets) == pytest.approx(wanted)


def test_stages_are_what_a_strategy_is_priced_at(program: ModuleType, machine: Any) -> None:
    """Gradients go over the bus to the host, 4 bytes an element; from the device, messages do."""
    part = sys.modules["replayed"].Part
    bucket = Bucket((Parameter("a", (1000, 1000)), Parameter("b", (500, 1000))))
    taken = []
    for text in program.PAIRS["int8"]:
        found = list(machine.stages(bucket, Strategy.parse(text), Random(1)))
        kinds = [kind for kind, _ in found]
        assert (kinds[0], kinds[-1]) == ("encode", "decode")
        assert kinds.count("wire") == 2 * (2 if "offload" in text else 4)  # of two moves
        taken.append({
            one: sum(a.seconds for _, stage in found for a in stage if one in a.on) for one in part
        })  # fmt: skip
    device, host = taken
    assert host[part.DOWN] == host[part.UP] == pytest.approx(1.5e6 * 4 / 25e9)
    assert host[part.DEVICE] == 0.0 < device[part.DEVICE]
    assert device[part.DOWN] < host[part.DOWN]
    assert device[part.LINK] == host[part.LINK] > 0
    assert host[part.CORES] > 10 * device[part.DEVICE]


def test_draws_are_between_recorded_calls(program: ModuleType) -> None:
    recorded = sys.modules["recorded"]
    points = {10: [1.0, 3.0], 20: [2.0, 4.0]}
    dice = Random(0)
    found = [recorded.drawn(points, 15, dice) for _ in range(50)]
    assert {1.5, 3.5} <= set(found) <= {1.5, 2.5, 3.0, 3.5}
    assert recorded.drawn({10: [1.0], 20: [2.0]}, 30, dice) == 3.0
    assert recorded.drawn({10: [1.0], 20: [3.0]}, 5, dice) == pytest.approx(0.02)


def test_a_processor_is_measured(program: ModuleType) -> None:
    recorded = sys.modules["recorded"]
    found = recorded.measure((64, 128), 2)
    loaded = json.loads((RESULTS / "host.json").read_text())
    assert found.keys() == loaded.keys()
    assert found["jobs"].keys() == loaded["jobs"].keys()
    assert found["python"].keys() == loaded["python"].keys()
    for points in (*found["jobs"].values(), *found["python"]["int8"].values()):
        assert all(len(calls) == 2 and min(calls) > 0 for calls in points.values())


def test_a_cell_is_planned_and_replayed(program: ModuleType) -> None:
    """The launches of a small model take longer than its work, so the host wins."""
    cell = program.Cell("perceptron", "top-k", 10, 5, 8, 2)
    found = program.look_at(cell, program.Times.load(), steps=2)
    assert found["named"] == found["faster"] == "host"
    assert found["behind"] == 0.0
    assert all(x > program.MODELS["perceptron"].backward for x in found["replayed"])
    said = program.table([found, {**found, "named": "device", "behind": 0.25}])
    assert "**25.0% behind**" in said
    assert "1 of 2 as named; 1 no more than 1 % behind" in said


def test_what_is_told_of_twenty_cells_is_recorded(program: ModuleType) -> None:
    found = json.loads((RESULTS / "offload.json").read_text())
    assert [row["model"] for row in found] == [cell.model for cell in program.CELLS]
    assert sum(row["named"] == row["faster"] for row in found) == 19
    assert {row["faster"] for row in found} == {"device", "host"}
