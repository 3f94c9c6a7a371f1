"""Other densities, bits and ranks: which exist, what they cost, and how a budget is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest
from profiles import LOCAL, cost, few, profile

from gradwire import Strategy
from gradwire.planner.candidates import BF16, FP32
from gradwire.planner.choose import choose
from gradwire.planner.exactness import error_of, shares
from gradwire.planner.pricing import price
from gradwire.planner.profile import Profile
from gradwire.planner.variants import variants, worked_out

TOPK, THIN, THICK = (f"topk({d})+ef | allgather" for d in (0.01, 0.001, 0.1))
MODEL = profile(parameters=few(), bits_per_second=2e7, strategies=[FP32, BF16, TOPK])


@pytest.mark.parametrize(
    ("text", "some", "count"),
    [
        (TOPK, THIN, 6), ("topk(0.02)+ef | allgather", TOPK, 7),
        ("dgc(0.001, momentum=0.8) | gtopk", "dgc(0.01, momentum=0.8) | gtopk", 6),
        ("qsgd(4) | alltoall", "qsgd(2) | alltoall", 2), ("lloyd(2)+ef | allgather",) * 1
        + ("lloyd(1)+ef | allgather", 1), ("none | powersgd(4)", "none | powersgd(8)", 4),
        (FP32, None, 0), ("int8 | alltoall", None, 0),
    ],
)  # fmt: skip
def test_what_members_let_vary(text: str, some: str | None, count: int) -> None:
    made = [Strategy.parse(own) for own in variants(text)]
    assert len(set(made)) == len(made) == count
    assert Strategy.parse(text) not in made
    assert some is None or Strategy.parse(some) in made
    assert {s.feedback for s in made} <= {Strategy.parse(text).feedback}


def test_what_variants_cost_follows_from_what_was_measured() -> None:
    found = worked_out(MODEL)
    assert set(map(Strategy.parse, found)) == set(map(Strategy.parse, variants(TOPK)))
    whole, n = MODEL.strategies[TOPK], 512 * 512
    for text, own in found.items():
        assert own.like == TOPK
        assert own.error is None
        sent = price(text, [(1024, 256)], MODEL.world).bytes_sent
        assert own.bytes(n) == pytest.approx(sent, rel=0.05), text
    bytes_ = [found[text].wire(n) for text in (THIN, THICK)]
    assert bytes_[0] < whole.wire(n) < bytes_[1]
    assert worked_out(replace(MODEL, strategies={**MODEL.strategies, **found})) == {}


def test_a_variant_worked_out_is_near_the_variant_measured() -> None:
    """The costs follow a known law: each wire is start-ups plus bytes."""
    own = profile(parameters=few(), strategies=[TOPK])
    with patch.dict(LOCAL, {THICK: LOCAL[TOPK]}):
        measured = cost(THICK, 4, 1e9, 1e-4)
    (made,) = (c for t, c in worked_out(own).items() if Strategy.parse(t) == Strategy.parse(THICK))
    for n in (4096, 65_536, 1_048_576):
        assert made.wire(n) == pytest.approx(measured.wire(n), rel=0.1)


def erring(errors: Mapping[str, Mapping[str, float]], own: Profile = MODEL) -> Profile:
    """A profile with these errors of parameters, by strategy."""
    made = {**own.strategies, **worked_out(own)}
    strategies = {}
    for text, own_cost in made.items():
        of_one = errors.get(str(Strategy.parse(text)), {})
        error = max(of_one.values(), default=0.0)
        strategies[text] = replace(own_cost, error=error, errors=dict(of_one))
    return replace(own, strategies=strategies)


NAMES = [f"w{i}" for i in range(6)]
EASY = dict.fromkeys(NAMES, 0.1)
KNOWN = erring({
    THIN: {**EASY, "w0": 9.0, "w1": 9.0}, TOPK: {**EASY, "w0": 2.0, "w1": 2.0},
    THICK: {**EASY, "w0": 0.2, "w1": 0.2},
})  # fmt: skip


def test_the_budget_is_spent_tensor_by_tensor() -> None:
    """Four tensors are well described by few elements, two are not: each has its own density."""
    found = choose(KNOWN, [THIN, TOPK, THICK], lanes=[1], error_budget=0.25).best
    of = {name: str(found.plan.strategy_of(name)) for name in NAMES}
    assert {of["w0"], of["w1"]} <= {THICK, FP32, BF16}
    assert {of[name] for name in NAMES[2:]} == {THIN}
    assert found.error is not None
    assert found.error <= 0.25
    uniform = choose(KNOWN, [THICK], lanes=[1]).best
    assert found.seconds < 0.9 * uniform.seconds


def test_the_error_of_a_plan_is_a_root_mean_square_over_elements() -> None:
    found = choose(KNOWN, [TOPK], lanes=[1]).best
    weights = shares(KNOWN)
    assert sum(weights.values()) == pytest.approx(1.0)
    squares = dict.fromkeys(NAMES, 0.01) | {"w0": 4.0, "w1": 4.0, "b": 0.0}
    exact = sum(weights[name] * squares[name] for name in weights) ** 0.5
    assert {str(s) for s in found.plan.strategies} == {TOPK, FP32}
    assert found.error == error_of(KNOWN, found.plan) == pytest.approx(exact)


def test_errors_of_parameters_are_kept_in_files() -> None:
    again = Profile.from_json(KNOWN.to_json())
    assert again == KNOWN
    assert again.strategies[TOPK].errors["w0"] == 2.0
    assert '"errors": {}' not in KNOWN.to_json()
