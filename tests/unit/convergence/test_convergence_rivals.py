"""Rivals: each equals what its paper says, where that is known, and sends the bytes it states."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.buckets import Parameter
from gradwire.plan import Plan
from gradwire.strategy import Strategy
from suites import first

SHAPES = {"matrix": (96, 48), "odd": (7, 64), "vector": (96,)}
HIDDEN = 'none+muon(rest="none | allreduce") | allgather'


def plan(text: str, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Plan:
    parameters = [Parameter(name, shape) for name, shape in shapes.items()]
    return Plan.make(parameters, Strategy.parse(text))


def drawn(world: int, seed: int = 0, shapes: dict[str, Any] = SHAPES) -> list[dict[str, Tensor]]:
    dice = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randn(shape, generator=dice) for name, shape in shapes.items()}
        for _ in range(world)
    ]


def mean(gradients: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([mine[name] for mine in gradients]).mean(0)


def sent(workers: Any) -> float:
    (every,) = set(workers.trace.bytes_sent)
    return every


# -- Dion ----------------------------------------------------------------------------------


def test_dion_at_full_rank_steps_by_the_orthonormal_factor(suite: SimpleNamespace) -> None:
    """With Q as the momentum's right singular vectors, the power iteration has converged."""
    workers = suite.rivals.Dion(plan(HIDDEN, {"matrix": (96, 48)}), 1, rank=48)
    (gradients,) = drawn(1, shapes={"matrix": (96, 48)})
    left, _, right = torch.linalg.svd(gradients["matrix"], full_matrices=False)
    workers.memory["matrix"]["right"] = right.T.clone()
    step = workers.exchange([gradients])["matrix"]
    torch.testing.assert_close(step, 0.2 * 96**0.5 * left @ right, rtol=1e-3, atol=1e-4)


def test_dion_comes_to_the_largest_directions(suite: SimpleNamespace) -> None:
    """From one gradient again and again, without momentum, rank 2 finds its two directions."""
    workers = suite.rivals.Dion(plan(HIDDEN, {"matrix": (96, 48)}), 2, rank=2, momentum=0.0)
    dice = torch.Generator().manual_seed(3)
    left, right = (torch.linalg.qr(torch.randn(n, 2, generator=dice)).Q for n in (96, 48))
    low = {"matrix": left @ torch.diag(torch.tensor([5.0, 3.0])) @ right.T}
    for _ in range(60):
        step = workers.exchange([low, low])["matrix"]
    torch.testing.assert_close(step, 0.2 * 96**0.5 * left @ right.T, rtol=1e-3, atol=1e-3)
    assert float(workers.memory["matrix"]["momentum"].abs().max()) < 1e-3, "nothing waits"


def test_dion_loses_nothing(suite: SimpleNamespace) -> None:
    """A step takes (1 - μ) of the mean momentum's part along one power step, and no more."""
    workers = suite.rivals.Dion(plan(HIDDEN), 3, rank=4)
    for seed in range(3):
        gradients = drawn(3, seed)
        before = workers.memory["matrix"]["momentum"].mean(0) + mean(gradients, "matrix")
        along = before @ workers.memory["matrix"]["right"]
        workers.exchange(gradients)
        gone = before - workers.memory["matrix"]["momentum"].mean(0)
        rank = int((torch.linalg.svdvals(gone) > 1e-4).sum())
        assert rank == 4
        left = torch.linalg.svd(gone).U[:, :4]
        torch.testing.assert_close(gone, 0.05 * left @ (left.T @ before), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(left @ (left.T @ along), along, rtol=1e-3, atol=1e-3)


def test_workers_of_dion_are_one_on_their_mean_gradient(suite: SimpleNamespace) -> None:
    """As the paper says, what each worker keeps for itself does not change the step."""
    many, one = (suite.rivals.Dion(plan(HIDDEN), world, rank=8) for world in (4, 1))
    for seed in range(5):
        gradients = drawn(4, seed)
        steps = many.exchange(gradients)
        expected = one.exchange([{name: mean(gradients, name) for name in SHAPES}])
        for name, step in steps.items():
            torch.testing.assert_close(step, expected[name], rtol=1e-3, atol=1e-3)


def test_dion_sends_two_factors_and_the_plan_what_is_no_hidden_matrix(
    suite: SimpleNamespace,
) -> None:
    workers = suite.rivals.Dion(plan(HIDDEN), 4, rank=4)
    workers.exchange(drawn(4))
    factors = 4 * ((96 + 48) + (7 + 64))
    assert sent(workers) == pytest.approx(2 * 3 / 4 * 4 * (factors + 96))


# -- DeMo ----------------------------------------------------------------------------------


def test_demo_that_sends_all_is_the_sign_of_the_mean(suite: SimpleNamespace) -> None:
    workers = suite.rivals.DeMo(plan("none | allreduce"), 3, share=1.0)
    for seed in range(2):
        gradients = drawn(3, seed)
        found = workers.exchange(gradients)
        for name, step in found.items():
            expected = mean(gradients, name)
            clear = expected.abs() > 1e-5
            assert torch.equal(step[clear], expected[clear].sign())
            assert float(workers.memory[name]["momentum"].abs().max()) == 0.0


def test_demo_keeps_what_it_does_not_send(suite: SimpleNamespace) -> None:
    """After a step that holds one wave of a tile, only another wave of the tile is kept."""
    demo, shapes = suite.rivals.demo, {"matrix": (64, 64)}
    workers = suite.rivals.DeMo(plan("none | allreduce", shapes), 1, share=1 / 4096, decay=0.5)
    waves = torch.zeros(64, 64)
    waves[2, 5], waves[9, 0] = 3.0, 1.0
    gradient = demo.inverse(waves)
    step = workers.exchange([{"matrix": gradient}])["matrix"]
    one = torch.zeros_like(waves).index_put((torch.tensor(2), torch.tensor(5)), torch.tensor(3.0))
    expected = demo.inverse(one)
    clear = expected.abs() > 1e-5
    assert torch.equal(step[clear], expected[clear].sign())
    waits = workers.memory["matrix"]["momentum"].view(64, 64)
    torch.testing.assert_close(waits, waves - one, rtol=0, atol=1e-5)
    workers.exchange([{"matrix": torch.zeros(64, 64)}])
    assert float(workers.memory["matrix"]["momentum"].abs().max()) < 1e-5, "the other has left"


def test_waves_are_orthonormal_and_even(suite: SimpleNamespace) -> None:
    for n in (1, 7, 64):
        waves = suite.rivals.demo.cosines(n)
        torch.testing.assert_close(waves @ waves.T, torch.eye(n), rtol=0, atol=1e-5)
        assert float(waves[0].std(correction=0)) < 1e-6, "the first is a constant"


def test_demo_sends_places_and_values(suite: SimpleNamespace) -> None:
    workers = suite.rivals.DeMo(plan("none | allreduce"), 4, share=32 / 4096)
    workers.exchange(drawn(4))
    # (96, 48) is two tiles of 48 × 48, 18 waves each; (7, 64) one of 7 × 64, 4; 96 is two of 48.
    payload = -(-2 * 18 * (32 + 12) // 8) + -(-4 * (32 + 9) // 8) + -(-2 * 1 * (32 + 6) // 8)
    assert sent(workers) == 3 * payload


# -- SparseLoCo ----------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [1.0, 0.95])
def test_sparseloco_that_sends_all_is_the_mean(suite: SimpleNamespace, decay: float) -> None:
    workers = suite.rivals.SparseLoCo(
        plan("none | allreduce"), 3, share=1.0, decay=decay, coded=False
    )
    for seed in range(2):
        gradients = drawn(3, seed)
        for name, step in workers.exchange(gradients).items():
            torch.testing.assert_close(step, mean(gradients, name))


def test_sparseloco_in_every_step_of_all_is_dense_averaging(suite: SimpleNamespace) -> None:
    whole = partial(suite.rivals.SparseLoCo, share=1.0, coded=False)
    local = suite.methods.BY_NAME["local-2-none-allgather"]
    rival = replace(local, every=1, workers=whole)
    run = suite.train.Run("digits-mlp", "dense", 0, 3, 8, 0.01)
    ours, theirs = (
        suite.train.LocalTraining(run, method=m) for m in (replace(local, every=1), rival)
    )
    for _ in range(8):
        ours.advance()
        theirs.advance()
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_sparseloco_forgets_slowly_and_loses_nothing_else(suite: SimpleNamespace) -> None:
    """Mean residual + what arrived = β · mean residual before + mean gradient."""
    workers = suite.rivals.SparseLoCo(plan("none | allreduce"), 3)
    for seed in range(4):
        gradients = drawn(3, seed)
        before = {n: 0.95 * s["waiting"].mean(0) for n, s in workers.memory.items()}
        for name, step in workers.exchange(gradients).items():
            after = workers.memory[name]["waiting"].mean(0) + step
            torch.testing.assert_close(after, before[name] + mean(gradients, name))
            assert int((step != 0).sum()) <= 3 * max(2, round(0.04 * step.numel()))


def test_sparseloco_s_mean_of_senders(suite: SimpleNamespace) -> None:
    """Two workers that send one element each: at different places, and at the same place."""
    for of_senders, alone in ((False, 2.0), (True, 4.0)):
        workers = suite.rivals.SparseLoCo(
            plan("none | allreduce", {"vector": (64,)}), 2, share=1 / 64, coded=False,
            of_senders=of_senders,
        )  # fmt: skip
        one, other = torch.zeros(2, 64).unbind()
        one[3] = other[5] = 4.0
        apart = workers.exchange([{"vector": one}, {"vector": other}])["vector"]
        assert (float(apart[3]), float(apart[5])) == (alone, alone)
        both = workers.exchange([{"vector": one}, {"vector": 0.5 * one}])["vector"]
        assert float(both[3]) == 3.0


def test_two_bits_are_four_values_that_keep_the_sum(suite: SimpleNamespace) -> None:
    two_bits = suite.rivals.sparse_loco.two_bits
    values = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    found = two_bits(values)
    assert [len(row.unique()) for row in found] == [4, 4, 4]
    torch.testing.assert_close(found.sum(1), values.sum(1), rtol=1e-3, atol=1e-3)
    assert float((found - values).square().mean()) < 0.2 * float(values.square().mean())
    same = torch.full((2, 5), 3.0)
    torch.testing.assert_close(two_bits(same), same)


def test_sparseloco_sends_places_two_bits_and_a_table(suite: SimpleNamespace) -> None:
    workers = suite.rivals.SparseLoCo(plan("none | allreduce", {"matrix": (64, 128)}), 4)
    workers.exchange(drawn(4, shapes={"matrix": (64, 128)}))
    assert sent(workers) == 3 * (2 * 128 * (2 + 12) / 8 + 16)


# -- 0/1 Adam ------------------------------------------------------------------------------


def test_zero_one_adam_in_whole_numbers_is_adam(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bits lose nothing, every step is shared and none is frozen, it is Adam."""
    monkeypatch.setattr(suite.rivals.zero_one_adam, "signs", lambda x: x)
    workers = suite.rivals.ZeroOneAdam(
        plan("none+adam | allgather"), 3, betas=(0.9, 0.99), kappa=1000, frozen=1000, doubles=1000
    )
    m, v = {n: torch.zeros(s) for n, s in SHAPES.items()}, {}
    for seed in range(4):
        gradients = drawn(3, seed)
        for name, step in workers.exchange(gradients).items():
            g = mean(gradients, name)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v.get(name, torch.zeros_like(g)) + 0.01 * g.square()
            torch.testing.assert_close(
                step, m[name] / (v[name].sqrt() + 1e-8), rtol=1e-3, atol=1e-5
            )


def test_zero_one_adam_goes_alone_between_meetings(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bits lose nothing, all step by the sum of the mean steps since the last exchange."""
    monkeypatch.setattr(suite.rivals.zero_one_adam, "signs", lambda x: x)
    workers = suite.rivals.ZeroOneAdam(
        plan("none+adam | allgather"), 2, betas=(0.9, 0.99), frozen=1, doubles=1, furthest=4
    )
    residuals = [ledger.memory["matrix"]["residual"] for ledger in workers.ledgers]
    momentum, came, alone = torch.zeros(96, 48), torch.zeros(96, 48), 0
    divisor = 0.1 * mean(drawn(2, 0), "matrix").abs() + 1e-8
    for step in range(20):
        gradients = drawn(2, step)
        momentum = 0.9 * momentum + 0.1 * mean(gradients, "matrix")
        came, alone = came + momentum, alone + 1
        arrived = workers.exchange(gradients)["matrix"]
        if workers.meets(step):
            torch.testing.assert_close(arrived, came / divisor, rtol=1e-3, atol=1e-4)
            assert not any(own.any() for own in residuals)
            momentum, came, alone = came / alone, torch.zeros_like(came), 0
            assert sent(workers) > 0
        else:
            assert not arrived.any()
            assert not torch.equal(*residuals)
            assert sent(workers) == 0


def test_zero_one_adam_loses_no_bit(suite: SimpleNamespace) -> None:
    """What arrived, plus the residuals of workers and owner, is the sum of all that was given."""
    workers = suite.rivals.ZeroOneAdam(plan("none+adam | allgather"), 3, betas=(0.9, 0.99))
    state, came, arrived = workers.memory["matrix"], torch.zeros(96, 48), torch.zeros(96, 48)
    for seed in range(5):
        gradients = drawn(3, seed)
        x = torch.stack([mine["matrix"] for mine in gradients])
        came, step = came + x.mean(0), workers._in_bits(x, state)
        arrived = arrived + step
        assert len(step.abs().unique()) == 1
        waits = state["residual_worker"].mean(0) + state["residual_owner"][0]
        torch.testing.assert_close(arrived + waits, came, rtol=0, atol=1e-4)


def test_zero_one_adam_s_policies(suite: SimpleNamespace) -> None:
    workers = suite.rivals.ZeroOneAdam(
        plan("none+adam | allgather"), 2, betas=(0.9, 0.99), kappa=2, frozen=12, doubles=8,
        furthest=4,
    )  # fmt: skip
    assert [t for t in range(40) if workers.learns(t)] == [0, 1, 2, 4, 6, 10]
    meetings = [t for t in range(52) if workers.meets(t)]
    assert meetings == [*range(20), 21, 23, 25, 27, 31, 35, 39, 43, 47, 51]


def test_zero_one_adam_sends_one_bit_twice(suite: SimpleNamespace) -> None:
    workers = suite.rivals.ZeroOneAdam(
        plan("none+adam | allgather"), 4, betas=(0.9, 0.99), kappa=1
    )
    elements, bits = 96 * 48 + 7 * 64 + 96, (96 * 48 + 7 * 64 + 96) // 8 + 3 * 4
    expected = [4 * elements * workers.learns(t) + bits for t in range(3)]
    found = []
    for seed in range(3):
        workers.exchange(drawn(4, seed))
        found.append(sent(workers))
    assert found == [pytest.approx(2 * 3 / 4 * x) for x in expected]


# -- in runs -------------------------------------------------------------------------------


def bits(training: Any) -> list[Any]:
    return [training.losses, training.bytes, *training.model.state_dict().values()]


@pytest.mark.parametrize("cut", first([3, 4]))
@pytest.mark.parametrize(
    ("task", "name"),
    first([("gpt-muon", "dion-4"), ("gpt", "sparseloco-4"), ("gpt", "zero-one-adam"),
           ("gpt-muon", "dion-4-rest-4"), ("gpt", "demo-32")], 3),
)  # fmt: skip
def test_a_rival_resumes_bit_by_bit(
    suite: SimpleNamespace, task: str, name: str, cut: int
) -> None:
    method = suite.methods.BY_NAME[name]
    if name == "zero-one-adam":
        soon = partial(suite.rivals.ZeroOneAdam, betas=(0.9, 0.99), frozen=1, doubles=1)
        method = replace(method, workers=soon)
    kind = suite.train.Training if method.every == 1 else suite.train.LocalTraining
    run = suite.train.Run(task, name, 0, 2, 8, 0.01)
    small = replace(suite.tasks.TASKS[task], evaluate=lambda _: 0.0)
    whole, half, resumed = (kind(run, small, method) for _ in range(3))
    for _ in range(8):
        whole.advance()
    for _ in range(cut):
        half.advance()
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    while not resumed.is_over:
        resumed.advance()
    for a, b in zip(bits(whole), bits(resumed), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_dion_s_hidden_matrices_are_muon_s(suite: SimpleNamespace) -> None:
    run = suite.train.Run("gpt-muon", "dion-4", 0, 2, 8, 0.01)
    training = suite.train.Training(run)
    own = {n for n, s in training.exchange.workers.memory.items() if "momentum" in s}
    others = {n for n in training.exchange.workers.memory if n not in own}
    assert all(".weight" in name and name.startswith("blocks") for name in own)
    assert len(own) == 12
    assert {"symbols.weight", "places.weight", "scores.weight"} <= others
