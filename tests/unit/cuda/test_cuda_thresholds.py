"""The thresholds that a selection on CUDA predicts, in the interpreter, equal those of the program
that simulates them (benchmarks/gpu/thresholds.py)."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from interpreted import same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import drawn
from gradwire.kernels import Journal, UpdateTopk, cuda, new_status

N, K = 9000, 60
PROGRAM = Path(__file__).parents[3] / "benchmarks" / "gpu" / "thresholds.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("thresholds_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def selected(x: Tensor, k: int, hint: Tensor | float) -> Tensor:
    """Selects by the kernels, checks the twins' bits, and returns the next thresholds."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        indices, values = torch.zeros(k, dtype=torch.int32), torch.zeros(k)
        return [x, k, indices, values, status, hint], [indices, values]

    found, _ = same_by_both([cuda.topk, twins.topk], given)
    assert isinstance(found, Tensor)
    return found


def test_they_are_what_the_program_foresees(program: ModuleType) -> None:
    """The scales of these steps lead to every case: selection by the upper threshold, by the
    lower, and among all elements because the lower finds too few or too many."""
    thresholds, hint, ways = program.Thresholds(), 0.0, set[str]()
    for step, scale in enumerate((1.0, 1.0, 0.8, 0.85, 1.3, 0.1, 0.1, 10.0, 10.0, 9.0)):
        x = drawn(N, step) * scale
        few, many = (int((x.abs() >= t).sum()) for t in (thresholds.upper, thresholds.lower))
        _, found = thresholds.select(x.abs(), K)
        by_one = "upper" if few >= K else "lower"
        by_all = "too few" if many < K else "too many"
        ways.add(by_all if found.looks_at_all else by_one)
        hint = selected(x, K, hint)
        wanted = torch.tensor([thresholds.upper, thresholds.lower])
        torch.testing.assert_close(hint, wanted, rtol=2e-4, atol=0)  # the 2 k-th is truncated
        thresholds.upper, thresholds.lower = hint.tolist()
    assert ways == {"upper", "lower", "too few", "too many"}


def test_where_most_is_selected_all_are_candidates() -> None:
    """With no 2 k-th element, the threshold is so low that every element is a candidate."""
    hint = selected(drawn(N, 1), N - 9, 0.0)
    assert hint.max() < 1e-40


@pytest.mark.parametrize("lower", [2.5, 1e-3, 1e30, float("nan")])
@pytest.mark.parametrize("upper", [2.9, 0.5, 1e30, -1.0])
def test_no_pair_changes_what_is_selected(upper: float, lower: float) -> None:
    """Thresholds change only the time, whatever their order and however many reach them."""
    selected(drawn(N, 3), K, torch.tensor([upper, lower]))


def test_ties_of_more_than_there_is_room_for_are_selected() -> None:
    x = torch.ones(N)
    x[::2] = -1.0
    for _ in range(3):
        hint = selected(x, K, 0.0)
        assert hint.tolist() == [1.0, 1.0]


def test_simulated_candidates_are_enough_and_seldom_many(program: ModuleType) -> None:
    """In a short run of either recurrence, candidates seldom exceed 4 k and never fall below k."""
    program.STEPS = 170
    for dgc in (True, False):
        steps = list(program.simulated(dgc, 20_000, 100, 3.0, 1))[20:]
        assert not any(step.candidates < 1 for step in steps)
        assert sum(step.candidates > 4 for step in steps) <= 3
        assert all(step.marked >= step.candidates for step in steps)
    assert "0.0 %" in program.row("dgc", steps)


def test_what_trains_is_looked_at(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model learns from a text that is shorter than the standard library's."""
    texts = ["a threshold is where what is selected begins"] * 2000
    monkeypatch.setattr(program, "build", partial(program.build, documents=texts))
    program.STEPS, program.WARM = 3, 1
    found = program.trained(False, 0.01)
    assert len(found[True]) + len(found[False]) == 2 * 11
    assert all(step.candidates >= 0 for of in found.values() for step in of)


@pytest.mark.parametrize(("upper", "kept"), [(0.01, 8), (0.2, 0)])
def test_twins_go_on_with_a_pair(upper: float, kept: int) -> None:
    """The twins accept a pair: a gradient of ones is 100 or 5 times the upper threshold."""
    v, places, values, journal = torch.zeros(8), torch.zeros(1).int(), torch.zeros(1), Journal()
    hint = torch.tensor([upper, 0.005])
    one = UpdateTopk(torch.ones(8), None, v, 1, places, values, None, None, hint=hint)
    twins.update_topk([one._replace(journal=journal)], new_status())
    assert values.tolist() == [1.0]
    assert journal.elements == kept
