"""What the face of the search for one link refuses: each would hang, or read beside its rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gradwire.errors import KernelError
from gradwire.kernels import use
from gradwire.kernels.lanes import Option, Problem
from gradwire.kernels.native import available_sets
from gradwire.kernels.one_link import plan_link

CURVE = [(0.0, 1.0, 0.5), (2.0, 2.0, 1.0)]
GOOD = Problem([1.0, 2.0], [0.0, 1.0, 3.0], [Option(1, CURVE, CURVE, CURVE)], 2, 2)


def of_send(send: Any, lane: Any = 1) -> Problem:
    return replace(GOOD, options=[Option(lane, CURVE, send, CURVE)])


@pytest.mark.parametrize("kernels", [*available_sets()[-1:], "twin"])
@pytest.mark.parametrize(
    ("problem", "labels", "said"),
    [
        (replace(GOOD, ready=[-1.0], position=[0.0, 1.0]), 8, "nowhere falling"),
        (replace(GOOD, ready=[1.0, math.nan]), 8, "ready and position are finite"),
        (of_send([(0.0, 1.0)]), 8, "three curves"),
        (of_send([(2.0, 1.0, 0.0), (0.0, 1.0, 0.0)]), 8, "in the order of sizes"),
        (of_send(CURVE, 1.5), 8, "an option has lane 0 to 2"),
        (of_send([(0.0, 0.0, 1e300)]), 8, r"seconds are 1e\+15 at most, .* not 3e\+300"),
        (GOOD, 0, "max_labels are at least 1"),
        (GOOD, 1 << 63, "max_labels are at least 1"),
        (GOOD, 2.5, "max_labels are at least 1"),
        (replace(GOOD, max_span=1, max_groups=1), 8, "groups can hold all tensors"),
        (Problem([0.0] * 30_000, [0.0] * 30_001, GOOD.options, 30_000, 1), 8, "lower max_span"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(
    problem: Problem, labels: Any, said: str, kernels: str
) -> None:
    with use(kernels), pytest.raises(KernelError, match=said):
        plan_link(problem, 0.0, labels)


def test_what_fits_is_planned() -> None:
    assert plan_link(GOOD, 0.0, 8).seconds > 0
