"""A journal lets undo_topk restore what rounding would lose, and changes nothing else."""

import copy

import pytest
import torch
from coded import NOISE, buffers
from hypothesis import given
from hypothesis import strategies as st
from samples import DTYPES, bits, draw, same, told

from gradwire.errors import KernelError
from gradwire.kernels import (
    Journal,
    UpdateCodes,
    UpdateTopk,
    instruction_set,
    new_status,
    nothing_taken,
    undo_topk,
    update_codes,
    update_topk,
    use,
)
from gradwire.kernels.formats import INT8
from gradwire.kernels.native import available_sets
from gradwire.kernels.update import update_many_topk

pytestmark = pytest.mark.usefixtures("instruction_set")
BLOCK = 1024
FORMS = {  # momentum, nesterov, rounding errors of the form in units of 16·threshold·1e-7
    "feedback": (None, False, 1.0),
    "momentum": (0.9, False, 1.0),
    "nesterov": (0.9, True, 3.0),
}


class Held:
    """u, v and what is sent, of scale a, and the threshold that earlier steps would have found."""

    def __init__(self, n: int, a: float, momentum: float | None, seed: int = 0) -> None:
        k = max(1, n // 1000)
        self.momentum = momentum
        self.residual = draw("normal", n, seed + 1) * a
        self.velocity = None if momentum is None else draw("normal", n, seed + 2) * a
        self.indices, self.values = torch.empty(k, dtype=torch.int32), torch.empty(k)
        self.velocities = None if momentum is None else torch.empty(k)
        self.threshold = float(self.residual.abs().sort(descending=True).values[min(2 * k, n - 1)])

    def held(self) -> list[torch.Tensor]:
        both = (self.residual, self.velocity)
        return [x for x in both if x is not None]

    def update(self, g: torch.Tensor, journal: Journal | None, hint: float, **options: object):
        return told(
            update_topk, g, self.velocity, self.residual, len(self.values), self.indices,
            self.values, self.velocities, momentum=self.momentum, hint=hint, journal=journal,
            **options,
        )  # fmt: skip

    def undo(self, g: torch.Tensor, journal: Journal | None, **options: object) -> None:
        undo_topk(
            g, self.velocity, self.residual, self.indices, self.values, self.velocities,
            momentum=self.momentum, journal=journal, **options,
        )  # fmt: skip


@given(
    st.sampled_from(sorted(FORMS)),
    st.booleans(),
    st.sampled_from([1.0, -0.37, 1e3]),
    st.sampled_from([1e-6, 1e-3, 1.0, 1e4]),
    st.floats(-6, 8),
    st.sampled_from([1, 1023, 1024, 1025, 5000, 10_007]),
    st.lists(st.integers(0, 10_006), max_size=3),
    st.integers(0, 3),
)
def test_the_state_comes_back(
    form: str, mask: bool, scale: float, a: float, ratio: float, n: int, spikes: list[int],
    seed: int,
) -> None:  # fmt: skip
    momentum, nesterov, errors = FORMS[form]
    state, before = (Held(n, a, momentum, seed) for _ in "ab")
    g = draw("normal", n, seed + 3) * (a * 10.0**ratio / scale)
    for spike in spikes:
        g[spike % n] = 1e9 * a / scale
    journal, options = Journal(), {"nesterov": nesterov, "mask": mask, "scale": scale}
    assert state.update(g, journal, before.threshold, **options)[1]
    state.undo(g, journal, **options)
    limit = 16 * before.threshold
    kept = torch.zeros(n, dtype=torch.bool)
    for place in ((g * scale).abs() >= limit).nonzero().view(-1) // BLOCK:
        kept[place * BLOCK : (place + 1) * BLOCK] = True
    if instruction_set() != "twin":
        assert journal.elements == int(kept.sum())
    for now, was in zip(state.held(), before.held()):
        assert same(now[kept], was[kept])
        error = float((now - was).abs().max())
        assert error <= errors * max(limit, float(was.abs().max())) * 1e-7
        if n > 1000:  # where the threshold is the tail's
            assert error <= 1e-5 * float(was.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_without_a_hint_all_of_it_comes_back_bit_for_bit(
    form: str, mask: bool, dtype: torch.dtype
) -> None:
    momentum, nesterov, _ = FORMS[form]
    for n in (1, 17, 1024, 3003):
        state, before = (Held(n, 1e-3, momentum) for _ in "ab")
        g = draw("broken", n, 5, dtype) * 1e4
        journal = Journal()
        state.update(g, journal, 0.0, nesterov=nesterov, mask=mask)
        assert journal.elements == n
        state.undo(g, journal, nesterov=nesterov, mask=mask)
        for now, was in zip(state.held(), before.held()):
            assert same(now, was)


def test_even_the_velocity_that_no_momentum_forgot() -> None:
    state, before = (Held(2000, 1.0, 0.0) for _ in "ab")
    journal, g = Journal(), draw("normal", 2000, 5) * 1e6
    state.update(g, journal, before.threshold)
    state.undo(g, journal)
    assert same(state.velocity, before.velocity)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_non_finite_elements_stay_as_they_were(form: str) -> None:
    """They stay in blocks that are kept and, where only the sum overflows, in other blocks."""
    momentum, nesterov, _ = FORMS[form]
    n = 4 * BLOCK
    state, before = (Held(n, 1.0, momentum) for _ in "ab")
    for each in (state, before):
        each.residual[5] = 3.4e38
        each.residual[7] = float("inf")
    g = draw("normal", n, 5)
    g[5] = 3e38
    g[BLOCK] = float("nan")
    g[3 * BLOCK + 1] = -float("inf")
    journal = Journal()
    for hint in (before.threshold, 3e38):  # with the second, only inf and NaN reach the limit
        assert not state.update(g, journal, hint, nesterov=nesterov)[1]
        state.undo(g, journal, nesterov=nesterov)
        for now, was in zip(state.held(), before.held()):
            assert same(now[[5, 7, BLOCK, 3 * BLOCK + 1]], was[[5, 7, BLOCK, 3 * BLOCK + 1]])
            assert same(now[BLOCK : 2 * BLOCK], was[BLOCK : 2 * BLOCK])


@pytest.mark.parametrize("form", sorted(FORMS))
def test_an_update_is_the_same_with_a_journal(form: str) -> None:
    momentum, nesterov, _ = FORMS[form]
    for n in (1, 1023, 1025, 2077):
        for b in (1.0, 1e6):
            g = draw("normal", n, 5) * b
            state, plain = (Held(n, 1.0, momentum) for _ in "ab")
            found = state.update(g, Journal(), state.threshold, nesterov=nesterov)
            assert found == plain.update(g, None, state.threshold, nesterov=nesterov)
            for one, other in zip(state.held(), plain.held()):
                assert same(one, other)
            assert bits(state.indices) == bits(plain.indices)
            assert same(state.values, plain.values)


def test_every_native_set_keeps_and_gives_back_the_same_bits() -> None:
    n = 5003
    g = draw("normal", n, 5) * 4
    g[2000] = 1e6
    seen = []
    for name in available_sets()[1:]:
        with use(name):
            state, journal = Held(n, 1.0, 0.9), Journal()
            state.update(g, journal, state.threshold)
            assert journal.elements == BLOCK
            state.undo(g, journal)
            seen.append([bits(x) for x in state.held()])
    assert all(one == seen[0] for one in seen)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_ordinary_steps_keep_nothing(density: float) -> None:
    n = 20_000
    state = Held(n, 0.0, 0.9)
    k = int(n * density)
    state.indices, state.values = torch.empty(k, dtype=torch.int32), torch.empty(k)
    state.velocities, journal = torch.empty(k), Journal()
    hint = state.update(draw("normal", n, 100), None, 0.0)[0]
    for step in range(50):
        hint = state.update(draw("normal", n, step), journal, hint)[0]
        assert journal.elements == 0, f"step {step}"


def test_it_is_of_the_last_update_only_and_is_cleared() -> None:
    state, journal = Held(3000, 1.0, 0.9), Journal()
    g = draw("normal", 3000, 5)
    state.update(g * 1e6, journal, state.threshold)
    assert journal.elements == 3000
    state.update(g, journal, 1e6)
    assert journal.elements == 0
    state.update(g, journal, 0.0)
    assert journal.elements == 3000
    journal.clear()
    assert journal.elements == 0
    copy.deepcopy(journal)


def test_other_updates_in_between_and_undoing_twice_change_nothing() -> None:
    n = 3000
    state, before, other = Held(n, 1e-3, 0.9), Held(n, 1e-3, 0.9), Held(n, 1.0, 0.9, 7)
    g, journal = draw("normal", n, 5) * 1e4, Journal()
    state.update(g, journal, state.threshold)
    other.update(g, Journal(), 0.0)
    for _ in range(2):
        state.undo(g, journal)
        for now, was in zip(state.held(), before.held()):
            assert same(now, was)


def test_segments_that_share_a_journal_are_refused() -> None:
    """The first one's would be freed while the extension writes to it."""
    n, status, journal = 3000, new_status(), Journal()
    g, nothing = draw("normal", n, 5), nothing_taken(torch.zeros(n))
    codes, scales = buffers(INT8, n)

    def topk(own: Journal | None) -> UpdateTopk:
        return UpdateTopk(g, None, torch.zeros(n), 0, *nothing, None, None, journal=own)

    def coded(own: Journal | None) -> UpdateCodes:
        return UpdateCodes(INT8, g, None, torch.zeros(n), codes, scales, NOISE, None, journal=own)

    for update, segment in ((update_many_topk, topk), (update_codes, coded)):
        with pytest.raises(KernelError, match="1 of 2 journals are given again; make a Journal"):
            update([segment(own) for own in (journal, None, journal)], status)
        update([segment(own) for own in (journal, None, Journal(), None)], status)
        assert journal.elements == n


def test_a_journal_of_another_update_is_refused() -> None:
    state, feedback, journal = Held(3000, 1.0, 0.9), Held(3000, 1.0, None), Journal()
    g = draw("normal", 3000, 5)
    state.update(g, journal, 0.0)
    feedback.update(g, None, 0.0)
    kept = feedback.residual.clone()
    with pytest.raises(KernelError, match="the journal must be of the update"):
        feedback.undo(g, journal)
    assert same(feedback.residual, kept)
    short = Held(2999, 1.0, 0.9)
    short.update(g[:2999], None, 0.0)
    with pytest.raises(KernelError, match="the journal must be of the update"):
        short.undo(g[:2999], journal)
