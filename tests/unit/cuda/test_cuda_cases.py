"""The cases by which `gradwire doctor` and benchmarks/gpu check a device, in the interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import Case, cases, difference, room_of_cuda
from gradwire.kernels import cuda
from posing import posing

SOME = [case for case in cases(600) if "float16" not in case.name]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_none_differs(case: Case) -> None:
    assert difference(case, room_of_cuda(), "cpu") == ""


ONE_OF_EACH = {case.operation: case for case in reversed(SOME)}


@pytest.mark.parametrize("case", ONE_OF_EACH.values(), ids=lambda case: case.name)
def test_each_launches_where_its_tensors_are(case: Case) -> None:
    """Kernels run where their tensors are, though another device is current and would refuse."""
    with posing(interpreted=True) as scene:
        assert difference(case, room_of_cuda(), "cuda:1") == ""
        assert scene.cuda.current_device() == 0
        assert scene.cuda.used() == {torch.device("cuda", 1)}


def test_every_kernel_of_the_room_is_tried() -> None:
    own = {
        name for name in cuda.__all__
        if getattr(cuda, name).__module__.startswith("gradwire.kernels.cuda")
    }  # fmt: skip
    assert {case.operation for case in cases()} == own - {"first_violation"}, "a part of others"


@pytest.mark.parametrize("entry", [0, 599])
def test_one_wrong_element_is_told(entry: int) -> None:
    def cast(source: Tensor, target: Tensor, status: Tensor | None) -> None:
        twins.cast(source, target, status)
        target[entry] += 1

    (case,) = (case for case in cases(600) if case.name == "cast of normal to torch.float32")
    room: Any = SimpleNamespace(cast=cast)
    assert difference(case, room, "cpu") == (
        "cast of normal to torch.float32: tensor 1 differs in 1 of 600 elements"
    )


def test_a_status_and_a_number_that_are_wrong_are_told() -> None:
    names = {case.name: case for case in cases(600)}
    silent: Any = SimpleNamespace(flag_non_finite=lambda x, status: None)
    told = difference(names["flag_non_finite of bad torch.float32"], silent, "cpu")
    assert told.endswith("tensor 1 differs in 1 of 1 elements")
    wrong: Any = SimpleNamespace(
        decode_indices=lambda *given: twins.decode_indices(*given) + 1
    )  # fmt: skip
    told = difference(names["decode_indices gap8"], wrong, "cpu")
    assert told == "decode_indices gap8: it returns 13, and 12 is right"


@pytest.mark.parametrize(
    ("least", "told"), [(1.0, "elements, not 82"), (0.0, "differs in 82 of 82 elements")]
)
def test_what_is_found_wrongly_is_told(least: float, told: str) -> None:
    case = next(case for case in cases(600) if case.name == "reach of normal torch.float32")

    def reach(segments: list[Any], status: Tensor) -> Any:
        found = twins.reach([one._replace(least=least or one.least) for one in segments], status)
        return found if least else [one._replace(values=one.values + 1.0) for one in found]

    said = difference(case, SimpleNamespace(reach=reach), "cpu")
    assert said.startswith(f"{case.name}: tensor ")
    assert said.endswith(told)


def test_the_benchmark_s_jobs_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's jobs work, except the clock, which needs a device."""
    path = Path(__file__).parents[3] / "benchmarks" / "gpu" / "main.py"
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location("benchmark_of_gpus", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "DEVICE", torch.device("cpu"))
    worked = list[str]()

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        worked.append("well")
        return 1.0

    monkeypatch.setattr(benchmark, "seconds_of", seconds_of)
    for work, each in benchmark.jobs(5000).values():
        assert seconds_of(work) * each > 0
    benchmark.rival(5000)
    benchmark.small(parameters=2)
    assert len(worked) == 10
