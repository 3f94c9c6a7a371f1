"""update_topk, undo_topk and restore_topk: against their twins and against their promises."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import DISTRIBUTIONS, DTYPES, draw, same, told

from gradwire.errors import KernelError
from gradwire.extension import TWIN
from gradwire.kernels import (
    Journal,
    fallbacks,
    new_status,
    restore_topk,
    undo_topk,
    update_topk,
)
from gradwire.kernels.native import use

pytestmark = pytest.mark.usefixtures("instruction_set")
KINDS = st.sampled_from(sorted(DISTRIBUTIONS))
MOMENTA = st.sampled_from([None, 0.0, 0.5, 0.9])


class State:
    """The tensors of one parameter on one rank."""

    def __init__(self, kinds: tuple[str, str], n: int, k: int, momentum: float | None, shift: int):
        self.momentum = momentum
        self.residual = draw(kinds[0], n, 11, shift=shift)
        self.velocity = None if momentum is None else draw(kinds[1], n, 12, shift=shift)
        self.indices = torch.full((k,), -7, dtype=torch.int32)
        self.values = torch.full((k,), 9.0)
        self.velocities = None if momentum is None else torch.full((k,), 9.0)

    def tensors(self) -> list[torch.Tensor | None]:
        return [self.residual, self.velocity, self.indices, self.values, self.velocities]

    def same(self, other: "State") -> bool:
        return all(same(a, b) for a, b in zip(self.tensors(), other.tensors()))

    def update(
        self, gradient: torch.Tensor, *, twin: bool = False, **options: object
    ) -> tuple[float, bool]:
        """Returns the next hint, and whether all was finite."""
        return told(
            in_torch(update_topk) if twin else update_topk,
            gradient,
            self.velocity,
            self.residual,
            self.values.numel(),
            self.indices,
            self.values,
            self.velocities,
            momentum=self.momentum,
            **options,
        )

    def undo(self, gradient: torch.Tensor, *, twin: bool = False, **options: object) -> None:
        with use(TWIN) if twin else nullcontext():
            undo_topk(
                gradient,
                self.velocity,
                self.residual,
                self.indices,
                self.values,
                self.velocities,
                momentum=self.momentum,
                **options,
            )


@given(
    KINDS,
    KINDS,
    KINDS,
    st.integers(0, 300),
    st.floats(0, 1),
    st.sampled_from(DTYPES),
    MOMENTA,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 0.125, -3.0, 1e30]),
    st.sampled_from([0.0, 0.5, 2.0, 1e30]),
    st.integers(0, 3),
)
def test_same_bits_as_twin(
    kind: str,
    v_kind: str,
    u_kind: str,
    n: int,
    density: float,
    dtype: torch.dtype,
    momentum: float | None,
    nesterov: bool,
    mask: bool,
    scale: float,
    hint: float,
    shift: int,
) -> None:
    gradient = draw(kind, n, 1, dtype, shift)
    untouched = gradient.clone()
    k = int(density * n)
    mine, twin = (State((v_kind, u_kind), n, k, momentum, shift) for _ in range(2))
    options = {"nesterov": nesterov, "mask": mask, "scale": scale}
    _, finite = mine.update(gradient, hint=hint, **options)
    assert finite == twin.update(gradient, twin=True, **options)[1]
    assert mine.same(twin)
    mine.undo(gradient, **options)
    twin.undo(gradient, twin=True, **options)
    assert mine.same(twin)
    assert same(gradient, untouched)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "kind", ["normal", "laplace", "ascending", "zeros", "two values", "broken"]
)
@pytest.mark.parametrize("density", [0.0005, 0.01, 0.3])
def test_large_same_bits_over_steps(
    kind: str, dtype: torch.dtype, density: float, instruction_set: str
) -> None:
    if instruction_set == "twin":
        pytest.skip("compared with itself")
    n = 100_003
    mine, twin = (State(("zeros", "zeros"), n, int(n * density), 0.9, 1) for _ in range(2))
    hint = 0.0
    for step in range(4):
        gradient = draw(kind, n, step, dtype, shift=step % 2)
        hint, finite = mine.update(gradient, hint=hint)
        assert twin.update(gradient, twin=True)[1] == finite
        assert mine.same(twin)


@given(
    st.sampled_from(["normal", "laplace", "sparse", "two values"]),
    st.integers(1, 300),
    st.floats(0, 1),
    st.sampled_from([None, 0.5, 0.9]),
    st.booleans(),
    st.booleans(),
)
def test_undo_takes_update_back(
    kind: str, n: int, density: float, momentum: float | None, nesterov: bool, mask: bool
) -> None:
    gradient = draw(kind, n, 5)
    state, before = (State(("laplace", "normal"), n, int(density * n), momentum, 0) for _ in "ab")
    options = {"nesterov": nesterov, "mask": mask, "scale": 0.25}
    state.update(gradient, **options)
    state.undo(gradient, **options)
    torch.testing.assert_close(state.residual, before.residual, rtol=1e-5, atol=1e-5)
    if momentum is not None:
        torch.testing.assert_close(state.velocity, before.velocity, rtol=1e-5, atol=1e-5)


@given(KINDS, st.integers(0, 300), st.floats(0, 1), MOMENTA, st.booleans(), st.booleans())
def test_restore_gives_back_all_that_was_taken(
    kind: str, n: int, density: float, momentum: float | None, nesterov: bool, mask: bool
) -> None:
    assume(kind != "broken")
    gradient = draw(kind, n, 5)
    state, whole = (State(("normal", "normal"), n, k, momentum, 0) for k in (int(density * n), 0))
    state.update(gradient, nesterov=nesterov, mask=mask)
    whole.update(gradient, nesterov=nesterov, mask=mask)  # k = 0: only the recurrence
    kept = state.residual.clone()
    kept[state.indices.long()] += state.values
    assert torch.equal(kept, whole.residual)  # sent + kept = given
    restore_topk(
        state.velocity, state.residual, state.indices, state.values, state.velocities, mask=mask
    )
    assert torch.equal(state.residual, whole.residual)
    assert same(state.velocity, whole.velocity)


@given(
    KINDS,
    KINDS,
    st.integers(0, 300),
    st.floats(0, 1),
    st.sampled_from(DTYPES),
    st.sampled_from([1.0, 0.9, 0.5, 0.1, -0.7, 1e-3]),
    st.sampled_from([1.0, 0.125, 1e30]),
)
def test_decay_same_bits_as_twin(
    kind: str, v_kind: str, n: int, density: float, dtype: torch.dtype, decay: float, scale: float
) -> None:
    gradient, k = draw(kind, n, 1, dtype, 1), int(density * n)
    mine, twin = (State((v_kind, "zeros"), n, k, None, 1) for _ in range(2))
    options = {"decay": decay, "scale": scale}
    _, finite = mine.update(gradient, **options)
    assert finite == twin.update(gradient, twin=True, **options)[1]
    assert mine.same(twin)
    mine.undo(gradient, **options)
    twin.undo(gradient, twin=True, **options)
    assert mine.same(twin)


def test_decay_by_hand() -> None:
    state = State(("equal", "equal"), 3, 1, None, 0)
    gradient = torch.tensor([1.0, 2.0, -3.0])
    state.update(gradient, decay=0.5, scale=2.0)  # v = -1.5/2 + 2g
    assert state.residual.tolist() == [1.25, 3.25, 0.0]
    assert (state.indices.tolist(), state.values.tolist()) == ([2], [-6.75])
    state.undo(gradient, decay=0.5, scale=2.0)
    assert state.residual.tolist() == [-1.5] * 3
    with pytest.raises(KernelError, match="decay must be finite"):
        state.update(gradient, decay=float("inf"))


def test_a_decay_belongs_to_feedback_alone() -> None:
    one, other = (State(("normal", "normal"), 50, 5, 0.9, 0) for _ in "ab")
    gradient = draw("normal", 50, 1)
    one.update(gradient, decay=0.5)
    other.update(gradient)
    assert one.same(other)


def test_the_recurrences_by_hand() -> None:
    gradient = torch.tensor([1.0, 2.0, -3.0])
    plain = State(("equal", "equal"), 3, 1, 0.5, 0)
    plain.update(gradient, scale=2.0)  # u = -0.75 + 2g, v = -1.5 + u
    assert plain.velocity.tolist() == [1.25, 3.25, 0.0]
    assert plain.residual.tolist() == [-0.25, 1.75, 0.0]
    assert (plain.indices.tolist(), plain.values.tolist()) == ([2], [-8.25])
    assert plain.velocities.tolist() == [-6.75]
    nesterov = State(("equal", "equal"), 3, 1, 0.5, 0)
    nesterov.update(gradient, nesterov=True, mask=False)  # u = (-1.5 + g)/2, v = (-1.5 + u) + g
    assert nesterov.velocity.tolist() == [-0.25, 0.25, -2.25]
    assert nesterov.residual.tolist() == [-0.75, 0.75, 0.0]
    assert (nesterov.values.tolist(), nesterov.velocities.tolist()) == ([-6.75], [-2.25])
    feedback = State(("equal", "equal"), 3, 1, None, 0)
    feedback.update(gradient)
    assert feedback.residual.tolist() == [-0.5, 0.5, 0.0]


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_non_finite_element_keeps_its_state(nesterov: bool) -> None:
    n = 200
    gradient = draw("broken", n, 3)
    bad = ~gradient.isfinite()
    state, before = (State(("normal", "normal"), n, 0, 0.9, 0) for _ in "ab")
    assert not state.update(gradient, nesterov=nesterov)[1]
    assert same(state.residual[bad], before.residual[bad])
    assert same(state.velocity[bad], before.velocity[bad])
    assert (state.residual[~bad] != before.residual[~bad]).all()
    state.undo(gradient, nesterov=nesterov)
    assert same(state.residual[bad], before.residual[bad])
    assert same(state.velocity[bad], before.velocity[bad])


def test_an_element_that_overflows_keeps_its_state() -> None:
    state = State(("equal", "equal"), 40, 2, None, 0)
    state.residual[7] = 3e38
    gradient = torch.full((40,), 3e38)
    gradient[8:] = 1.0
    journal = Journal()  # which alone tells it from a gradient that was added to nothing
    assert not state.update(gradient, hint=1e38, journal=journal)[1]
    assert state.indices.tolist() == [0, 1] or state.indices.tolist() == [0, 7]
    state.undo(gradient, journal=journal)
    assert state.residual[7] == torch.tensor(3e38)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["normal", "laplace"])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_hints_hold_over_500_steps(
    instruction_set: str, kind: str, momentum: float | None
) -> None:
    """With fresh gradients each step, from an empty state, the data is read about once a step."""
    if instruction_set == "twin":
        pytest.skip("the twin has no hints")
    n, steps = 50_000, 500
    state = State(("zeros", "zeros"), n, 50, momentum, 0)
    before, hint = fallbacks(), 0.0
    for step in range(steps):
        hint, finite = state.update(draw(kind, n, step), hint=hint)
        assert finite
    assert fallbacks() - before <= steps // 100


def test_momentum_and_its_tensors_come_together() -> None:
    state = State(("normal", "normal"), 10, 2, None, 0)
    state.momentum = 0.9
    with pytest.raises(KernelError, match="give all three or none"):
        state.update(torch.ones(10))
    state.momentum, state.velocity = None, torch.ones(10)
    with pytest.raises(KernelError, match="give all three or none"):
        state.update(torch.ones(10))


def test_wrong_tensors_are_refused() -> None:
    state = State(("normal", "normal"), 10, 2, 0.9, 0)
    with pytest.raises(KernelError, match="residual must have shape"):
        state.update(torch.ones(11))
    with pytest.raises(KernelError, match="scale must be finite"):
        state.update(torch.ones(10), scale=1e300)
    state.velocity = torch.ones(20)[::2]
    with pytest.raises(KernelError, match="velocity is written in place and must be contiguous"):
        state.update(torch.ones(10))
    with pytest.raises(KernelError, match="needs velocities"):
        restore_topk(torch.ones(10), state.residual, state.indices, state.values, None)


def test_a_strided_gradient_is_copied() -> None:
    state, other = (State(("normal", "normal"), 10, 2, 0.9, 0) for _ in "ab")
    gradient = torch.arange(20.0)
    state.update(gradient[::2])
    other.update(gradient[::2].contiguous())
    assert state.same(other)


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=str)
def test_a_zero_momentum_has_no_sign(zero: float) -> None:
    """As on a device."""
    velocity, residual = torch.zeros(2), torch.zeros(2)
    places, nothing = torch.empty(0, dtype=torch.int32), torch.empty(0)
    update_topk(
        torch.tensor([1.0, -1.0]), velocity, residual, 0, places, nothing, nothing, new_status(),
        momentum=zero, nesterov=True,
    )  # fmt: skip
    assert velocity.signbit().tolist() == [False, True]
