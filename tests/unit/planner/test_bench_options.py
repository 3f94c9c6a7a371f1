"""The benchmark's costs of paths: the library's tree and prices, with made-up times."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.planner.timeline import Resource, Stage

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "planner" / "options.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def costs(script: dict[str, Any]) -> Any:
    return script["Costs"](4, 2, 1e-5, 1e10, 1e-4, 1e9, 0.01, 2e-5, 1e10, 3e-5, 1e9)


def test_all_paths_of_one_device_uncompressed_first(script: dict[str, Any]) -> None:
    paths = script["paths"]()
    assert len(paths) == 174
    assert [path.compressions == 0 for path in paths] == [True] * 9 + [False] * 165


def test_an_all_reduce_is_its_formula(script: dict[str, Any], costs: Any) -> None:
    late, moved = costs.stages(script["paths"]()[0], 1000, Resource.COMPUTE)
    assert late == Stage(Resource.LATENCY, pytest.approx(14e-4), "wire")
    assert moved == Stage(Resource.CROSS, pytest.approx(2 * 7 / 8 * 4000 / 1e9), "wire")


def test_compressing_is_on_the_lane_asked_for(script: dict[str, Any], costs: Any) -> None:
    (path,) = [
        p for p in script["paths"]() if str(p) == "compress@gpu, all_gather, decompress@gpu"
    ]
    gpu, cpu = (costs.stages(path, 10_000, lane) for lane in (Resource.COMPUTE, Resource.WORKERS))
    assert gpu[0] == Stage(Resource.COMPUTE, pytest.approx(2e-5 + 1e-6), "encode")
    assert cpu[-1] == Stage(Resource.WORKERS, pytest.approx(3e-5 + 0.25 * 8 * 1e-5), "decode")
    assert gpu[1:3] == cpu[1:3]


def test_ranks_share_their_machines_link(script: dict[str, Any], costs: Any) -> None:
    path = next(
        p for p in script["paths"]() if str(p).startswith("reduce_scatter@node, all_reduce@")
    )
    seconds = {s.lane: s.seconds for s in costs.stages(path, 1 << 20, Resource.COMPUTE)[2:4]}
    assert seconds[Resource.CROSS] == pytest.approx(2 * 2 * 3 / 4 * (4 << 20) / 2 / 1e9, rel=0.01)


def test_one_bit_is_less_than_all(script: dict[str, Any], costs: Any) -> None:
    signs = replace(costs, density=0.0)
    path = script["paths"]()[9]
    moved = [
        sum(s.seconds for s in own.stages(path, 1 << 20, Resource.COMPUTE) if s.kind == "wire")
        for own in (costs, signs)
    ]
    assert moved[0] < moved[1]
