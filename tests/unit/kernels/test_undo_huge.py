"""Gradients of all magnitudes of fp32 are undone: what they added is removed, the residual comes
back up to rounding, and what was left alone stays as it is."""

from __future__ import annotations

import pytest
import torch
from in_torch import in_torch
from samples import same
from torch import Tensor

from gradwire.kernels import (
    Journal,
    UndoTopk,
    new_status,
    undo_many_topk,
    undo_topk,
    update_topk,
)
from gradwire.kernels.torch.update import forward

pytestmark = pytest.mark.usefixtures("instruction_set")
FORMS = {  # momentum, nesterov, decay
    "feedback": (None, False, 1.0), "decay": (None, False, 0.9), "momentum": (0.9, False, 1.0),
    "half": (0.5, False, 1.0), "none of it": (0.0, False, 1.0), "nesterov": (0.9, True, 1.0),
    "nesterov's half": (0.5, True, 1.0), "none of nesterov's": (0.0, True, 1.0),
}  # fmt: skip
MAGNITUDES = [1e-30, 1e-3, 1.0, 1e10, 1e20, 1e31, 1e37, 1.6e38, 1.75e38, 2e38, 3e38, 3.4e38]
NOT_FINITE = [torch.inf, -torch.inf, torch.nan]
ROUNDINGS = 8 * 2.0**-24
N = 2003
every_form = pytest.mark.parametrize("form", sorted(FORMS))


def drawn(seed: int, of: float = 1.0) -> Tensor:
    return of * torch.randn(N, generator=torch.Generator().manual_seed(seed))


def of_magnitudes(*these: float) -> Tensor:
    """These numbers with both signs, repeated."""
    return torch.tensor([*these, *(-one for one in these)]).repeat(N)[:N]


class Step:
    """An update that takes the k largest, and its correct result by the twins."""

    def __init__(self, form: str, g: Tensor, v: Tensor, k: int = 0) -> None:
        self.momentum, self.nesterov, self.decay = FORMS[form]
        self.g, self.k, self.v = g, k, v
        self.u = None if self.momentum is None else drawn(1)
        u, v = forward(g, self.u, self.v, self.momentum, self.nesterov, self.decay)
        self.left_alone = ~v.isfinite()
        largest = torch.stack([x.abs() for x in (g, v, u, self.v) if x is not None]).amax(0)
        self.rounding = ROUNDINGS * largest / min(self.momentum or 1.0, self.decay)

    def taken_back(
        self, twin: bool = False, hint: float = 0.0, journal: Journal | None = None
    ) -> list[Tensor]:
        """Returns the residual and the velocity after the update and its undoing."""
        u, v, k = None if self.u is None else self.u.clone(), self.v.clone(), self.k
        taken = torch.zeros(k, dtype=torch.int32), torch.zeros(k), None if u is None else v[:k] * 0
        how = {"momentum": self.momentum, "nesterov": self.nesterov, "decay": self.decay}
        do, undo = (in_torch(f) if twin else f for f in (update_topk, undo_topk))
        do(self.g, u, v, k, *taken, new_status(), hint=hint, journal=journal, **how)
        undo(self.g, u, v, *taken, journal=journal, **how)
        return [v] if u is None or self.momentum == 0.0 else [v, u]

    def is_taken_back(self, found: list[Tensor]) -> None:
        for now, was in zip(found, (self.v, self.u)):
            assert same(now[self.left_alone], was[self.left_alone])
            rest = ~self.left_alone
            assert bool(((now - was).abs() <= self.rounding)[rest].all())


@every_form
@pytest.mark.parametrize("k", [0, 700])
@pytest.mark.parametrize("magnitude", [*MAGNITUDES, *NOT_FINITE])
def test_one_magnitude(form: str, k: int, magnitude: float) -> None:
    step = Step(form, of_magnitudes(magnitude), drawn(2), k)
    step.is_taken_back(step.taken_back())


@every_form
@pytest.mark.parametrize("k", [0, 700])
@pytest.mark.parametrize("waits", [0.0, 1e-20, 1.0, 1e20])
def test_all_of_them_beside_each_other(form: str, k: int, waits: float) -> None:
    """All magnitudes are undone side by side, with the same bits in every room."""
    step = Step(form, of_magnitudes(*MAGNITUDES, *NOT_FINITE, 0.0), drawn(2, waits), k)
    found = step.taken_back()
    step.is_taken_back(found)
    assert all(map(same, found, step.taken_back(twin=True)))


@every_form
@pytest.mark.parametrize("hint", [0.0, 1e-3, 1.0, 1e37, 3e38])
def test_a_journal_knows_what_a_huge_residual_was(form: str, hint: float) -> None:
    """A huge residual left alone beside a finite gradient looks like what such a gradient makes;
    so the journal keeps these elements whatever the threshold."""
    v = drawn(2)
    v[::2] = of_magnitudes(1e38, 2e38, 3.4e38)[::2]
    step = Step(form, of_magnitudes(*MAGNITUDES[5:]), v)
    assert bool((step.left_alone & step.g.isfinite()).any())
    for now, was in zip(step.taken_back(hint=hint, journal=Journal()), (step.v, step.u)):
        assert same(now, was)


def test_a_journal_with_a_velocity_is_put_back_whole_where_nothing_else_is_restored() -> None:
    n, k = 5000, 10
    u, v = torch.randn(n), torch.randn(n)
    was, journal, taken = (u.clone(), v.clone()), Journal(), torch.zeros(k)
    places = torch.zeros(k, dtype=torch.int32)
    update_topk(
        torch.full((n,), 1e20), u, v, k, places, taken, torch.zeros(k), new_status(),
        momentum=0.9, mask=False, hint=1.0, journal=journal,
    )  # fmt: skip
    undo_many_topk([
        UndoTopk(None, u, v, places, taken, None, None, mask=False, journal=journal)
    ])  # fmt: skip
    assert torch.equal(u, was[0])
    assert torch.equal(v, was[1])
