"""Results are what the papers and torch say they must be (reference: compressors, G.2).

Each oracle is an independent computation: torch.optim.SGD, a closed form, or the authors' update
written from its equations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import laws
import pytest
import torch
from inputs import ranks
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.feedback import MomentumCorrection
from suites import first

N, STEPS, LR = 60, 30, 0.05
nesterovs = pytest.mark.parametrize("nesterov", [False, True])


class Quadratic:
    """Rank r's loss is ½ Σ a·(w - c_r)²: gradients a·(w - c_r), optimum of the mean: mean c."""

    def __init__(self, world: int, n: int = N) -> None:
        self.world = world
        self.curvature = torch.linspace(0.2, 2.0, n)
        self.centers = ranks(world, n, step=9)
        self.start = torch.zeros(n)

    def gradients(self, w: Tensor) -> list[Tensor]:
        return [self.curvature * (w - c) for c in self.centers]

    @property
    def optimum(self) -> Tensor:
        return torch.stack(self.centers).mean(0)


def train(
    strategy: Strategy | str, problem: Quadratic, steps: int = STEPS, *, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0,
    decay: Callable[[Tensor, Tensor], Tensor] = lambda g, w: g, cool_down: bool = False,
) -> Tensor:  # fmt: skip
    """Trains with averages of lockstep and steps of torch.optim.SGD; `decay` edits gradients.

    cool_down: whether the learning rate falls to zero, by squares.
    """
    w = problem.start.clone()
    optimizer = torch.optim.SGD(
        [w], lr=LR, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )
    state = [dict[str, Tensor]() for _ in range(problem.world)]
    for step in range(steps):
        if cool_down:
            optimizer.param_groups[0]["lr"] = LR * (1 - step / steps) ** 2
        gradients = [decay(g, w) for g in problem.gradients(w)]
        w.grad = lockstep(strategy, gradients, step=step, state=state)[0][0]
        optimizer.step()
    return w


def dense(problem: Quadratic, steps: int = STEPS, **optimizer: float | bool) -> Tensor:
    """Trains with torch alone: the mean gradient, and SGD with its own momentum."""
    w = problem.start.clone()
    sgd = torch.optim.SGD([w], lr=LR, **optimizer)  # type: ignore[arg-type]
    for _ in range(steps):
        w.grad = torch.stack(problem.gradients(w)).mean(0)
        sgd.step()
    return w


# -- density 1 is SGD --------------------------------------------------------------------------


@nesterovs
@pytest.mark.parametrize("world", [1, 3])
def test_everything_sent_without_mask_is_sgd_with_momentum(world: int, nesterov: bool) -> None:
    problem = Quadratic(world)
    strategy = f"topk(1)+dgc(0.9, nesterov={nesterov}, mask=False) | allgather"
    ours, torchs = train(strategy, problem), dense(problem, momentum=0.9, nesterov=nesterov)
    assert torch.allclose(ours, torchs, rtol=0, atol=1e-6)


def test_with_one_rank_it_is_sgd_bit_for_bit() -> None:
    problem = Quadratic(1)
    ours = train("topk(1)+dgc(0.9, mask=False) | allgather", problem)
    laws.same(ours, dense(problem, momentum=0.9), "SGD(momentum=0.9)")


@pytest.mark.parametrize("world", [1, 3])
def test_everything_sent_with_mask_is_sgd_without_momentum(world: int) -> None:
    """Masking forgets all momentum at density 1, as is known and documented."""
    problem = Quadratic(world)
    ours = train("topk(1)+dgc(0.9, mask=True) | allgather", problem)
    assert torch.allclose(ours, dense(problem), rtol=0, atol=1e-6)
    assert not torch.allclose(ours, dense(problem, momentum=0.9), rtol=0, atol=1e-2)


@nesterovs
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_dense_tensors_beside_it_are_sgd_with_momentum(nesterov: bool, collective: str) -> None:
    problem = Quadratic(3)
    ours = train(f"none+server_momentum(0.9, nesterov={nesterov}) | {collective}", problem)
    torchs = dense(problem, momentum=0.9, nesterov=nesterov)
    assert torch.allclose(ours, torchs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "text", ["none | allreduce", "none | allgather", "topk(1)+ef | allgather"]
)
@nesterovs
def test_whole_gradients_leave_the_optimizer_as_it_is(text: str, nesterov: bool) -> None:
    problem = Quadratic(3)
    settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    ours = train(text, problem, **settings)  # type: ignore[arg-type]
    assert torch.allclose(ours, dense(problem, **settings), rtol=0, atol=1e-6)


@nesterovs
def test_weight_decay_in_the_gradient_goes_through_the_momentum(nesterov: bool) -> None:
    """λw added to each rank's gradient is SGD's weight decay; added to the average it is not."""
    problem, strategy = (
        Quadratic(3),
        f"topk(1)+dgc(0.9, nesterov={nesterov}, mask=False)|allgather",
    )
    wanted = dense(problem, momentum=0.9, nesterov=nesterov, weight_decay=0.1)
    inside = train(strategy, problem, decay=lambda g, w: g + 0.1 * w)
    outside = train(strategy, problem, weight_decay=0.1)
    assert torch.allclose(inside, wanted, rtol=0, atol=1e-6)
    assert not torch.allclose(outside, wanted, rtol=0, atol=1e-3), "the famous mistake"


# -- momentum 0 is error feedback --------------------------------------------------------------


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("density", [0.05, 0.3, 1.0])
def test_momentum_0_is_plain_error_feedback_bit_for_bit(density: float, mask: bool) -> None:
    plain: list[dict[str, Tensor]] = [{}, {}, {}]
    corrected: list[dict[str, Tensor]] = [{}, {}, {}]
    for step in range(20):
        xs = ranks(3, N, step)
        one, _ = lockstep(f"topk({density})+ef | allgather", xs, step=step, state=plain)
        other, _ = lockstep(
            f"topk({density})+dgc(0.0, mask={mask}) | allgather", xs, step=step, state=corrected
        )
        laws.same(one[0], other[0], f"step {step}")
        for a, b in zip(plain, corrected):
            laws.same(a["residual"], b["residual"], f"residual at step {step}")


# -- conservation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "topk(0.02)+ef | allgather",
        "dgc(0.02) | allgather",
        "dgc(0.02, mask=False) | allgather",
        "dgc(0.02, nesterov=True) | allgather",
        "dgc(0.02, nesterov=True, mask=False) | allgather",
        "fp16+ef | allgather",
        "bf16+dgc | allgather",
    ],
)
def test_conservation_over_fifty_steps(text: str) -> None:
    steps = [ranks(4, 151, step) for step in range(50)]
    laws.law_nothing_is_lost(Strategy.parse(text), steps)


# -- a closed form -----------------------------------------------------------------------------


@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 40), (0.9, 40), (0.5, 100)])
def test_the_quadratic_follows_its_closed_form(momentum: float, steps: int) -> None:
    """A step multiplies (w - c*, u) of a coordinate by one 2 by 2 matrix, with powers in fp64."""
    problem = Quadratic(3)
    ours = train(f"topk(1)+dgc({momentum}, mask=False) | allgather", problem, steps)
    wanted = []
    for a, start, best in zip(problem.curvature, problem.start, problem.optimum):
        # u' = m·u + a·e; e' = e - lr·u'
        a = float(a)
        matrix = torch.tensor([[1 - LR * a, -LR * momentum], [a, momentum]], dtype=torch.float64)
        error = torch.tensor([float(start) - float(best), 0.0], dtype=torch.float64)
        wanted.append(float(best) + float((torch.matrix_power(matrix, steps) @ error)[0]))
    assert torch.allclose(ours, torch.tensor(wanted), rtol=0, atol=1e-5)


def distance(text: str, problem: Quadratic) -> float:
    """The distance from the optimum after 1500 steps, relative to that at the start."""
    w = train(f"{text} | allgather", problem, 1500, cool_down=True)
    return float((w - problem.optimum).norm() / problem.optimum.norm())


@pytest.mark.parametrize(
    "text",
    first(["topk(0.1)+ef", "dgc(0.1, mask=False)", "dgc(0.1, nesterov=True, mask=False)",
           "fp16+ef"]),
)  # fmt: skip
def test_compressed_training_reaches_the_optimum(text: str) -> None:
    """Training does, although no rank's gradient vanishes there and one element in ten is sent."""
    assert distance(text, Quadratic(3)) < 0.01


@pytest.mark.full
def test_masking_reaches_it_where_ranks_agree_and_leans_where_they_do_not() -> None:
    """A rank that sends more often forgets more of its velocity, so it weighs less.

    This is inherent in momentum factor masking (Lin et al. 2018, section 3.2), not in this code:
    the authors' update does the same.
    """
    agreeing = Quadratic(3)
    agreeing.centers = agreeing.centers[:1] * 3
    assert distance("dgc(0.1)", agreeing) < 1e-4
    assert 0.05 < distance("dgc(0.1)", Quadratic(3)) < 0.3


@pytest.mark.full
def test_without_feedback_it_does_not() -> None:
    """Small coordinates are never sent without error feedback: that is its reason."""
    assert distance("topk(0.1)", Quadratic(3)) > 0.5


# -- the authors' update, from its equations ---------------------------------------------------


class Authors:
    """DGC's memory as its authors released it, element by element in plain Python floats.

    compensate: momentums.mul_(m).add_(g); velocities.add_(momentums), or with Nesterov
    momentums.add_(g).mul_(m); velocities.add_(momentums + g). update: both are zeroed at the
    indices that were sent. With a sample ratio of 1 the selection is an exact top-k.
    """

    def __init__(self, n: int, ratio: float, momentum: float, nesterov: bool, mask: bool) -> None:
        self.momentums, self.velocities = [0.0] * n, [0.0] * n
        self.k = math.ceil(n * ratio)
        self.momentum, self.nesterov, self.mask = momentum, nesterov, mask

    def step(self, gradient: Sequence[float]) -> dict[int, float]:
        """Takes a step and returns the values that are sent, by index."""
        for i, g in enumerate(gradient):
            if self.nesterov:
                self.momentums[i] = (self.momentums[i] + g) * self.momentum
                self.velocities[i] += self.momentums[i] + g
            else:
                self.momentums[i] = self.momentums[i] * self.momentum + g
                self.velocities[i] += self.momentums[i]
        order = sorted(range(len(gradient)), key=lambda i: (-abs(self.velocities[i]), i))
        sent = {i: self.velocities[i] for i in order[: self.k]}
        for i in sent:
            self.velocities[i] = 0.0
            if self.mask:
                self.momentums[i] = 0.0
        return sent


def law_follows_the_authors(feedback: MomentumCorrection, world: int = 2) -> None:
    """All states and values are the authors' over twenty steps; see `test_mutants.py`."""
    n, ratio = 47, 0.1
    strategy = Strategy(laws.TopK(ratio), Strategy.parse("none | allgather").collective, feedback)
    settings = (feedback.momentum, feedback.nesterov, feedback.mask)
    theirs = [Authors(n, ratio, *settings) for _ in range(world)]
    state = [dict[str, Tensor]() for _ in range(world)]
    for step in range(20):
        xs = ranks(world, n, step)
        (mean, *_), _ = lockstep(strategy, xs, step=step, state=state)
        total = [0.0] * n
        for author, x in zip(theirs, xs):
            for i, value in author.step(x.tolist()).items():
                total[i] += value
        wanted = torch.tensor(total, dtype=torch.float64) / world
        assert torch.allclose(mean.double(), wanted, rtol=1e-5, atol=2e-5), f"step {step}"
        for author, memory in zip(theirs, state):
            for key, values in (("velocity", author.momentums), ("residual", author.velocities)):
                expected = torch.tensor(values, dtype=torch.float64)
                assert torch.allclose(memory[key].double(), expected, rtol=1e-5, atol=2e-5), (
                    f"step {step}: {key}"
                )
                assert torch.equal(memory[key] == 0, expected == 0), f"step {step}: {key} zeroed"


@nesterovs
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_state_by_state_as_the_authors(momentum: float, nesterov: bool, mask: bool) -> None:
    law_follows_the_authors(MomentumCorrection(momentum, nesterov, mask))


# -- mistakes of the training loop, against the oracle of SGD ----------------------------------


def is_sgd(strategy: str | Strategy, **settings: Any) -> bool:
    """Whether training with these settings steps as SGD with momentum and weight decay."""
    wanted = dense(Quadratic(3), momentum=0.9, weight_decay=0.1)
    ours = train(strategy, Quadratic(3), **settings)
    return torch.allclose(ours, wanted, rtol=0, atol=1e-5)


def inside(g: Tensor, w: Tensor) -> Tensor:
    return g + 0.1 * w


CORRECTED = "topk(1)+dgc(0.9, mask=False) | allgather"


def test_the_oracle_of_sgd_catches_mistakes_of_the_loop() -> None:
    assert is_sgd(CORRECTED, decay=inside)
    assert not is_sgd(CORRECTED, decay=inside, momentum=0.9), "double momentum"
    assert not is_sgd(CORRECTED, weight_decay=0.1), "weight decay outside the momentum"
    assert not is_sgd(CORRECTED, decay=lambda g, w: inside(g, w) / 3), "1/N twice"
    assert not is_sgd(CORRECTED, decay=lambda g, w: -inside(g, w)), "sign flip"
    assert not is_sgd(CORRECTED.replace("0.9", "0.8"), decay=inside), "another momentum"
    assert not is_sgd(CORRECTED.replace("mask=False", "mask=True"), decay=inside), "the mask"
