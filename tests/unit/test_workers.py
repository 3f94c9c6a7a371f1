"""All ranks of a plan in one process: lockstep for each bucket, and changes of the plan."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradwire
from gradwire import Plan, Strategy, Warmup
from gradwire.buckets import Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.testing import Workers
from gradwire.warmup import at_density

WORLD, DENSE = 3, ("none | allreduce",)
PARAMETERS = [Parameter("a", (20, 30)), Parameter("b", (7,)), Parameter("c", (5, 6, 7))]


def plan(text: str, bucket_bytes: int = 1000) -> Plan:
    return Plan.make(PARAMETERS, Strategy.parse(text), bucket_bytes=bucket_bytes)


def gradients(step: int, rank: int) -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(10 * step + rank)
    return {p.name: torch.randn(p.shape, generator=dice) for p in PARAMETERS}


def of_all(step: int) -> list[dict[str, Tensor]]:
    return [gradients(step, rank) for rank in range(WORLD)]


def mean(step: int) -> dict[str, Tensor]:
    given = of_all(step)
    return {p.name: sum(g[p.name] for g in given) / WORLD for p in PARAMETERS}  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    ["topk(0.1)+ef | allgather", "dgc(0.1) | gtopk", "qsgd(4)+ef | alltoall", "powersgd(2)"],
)
def test_it_is_lockstep_parameter_by_parameter(text: str) -> None:
    workers = Workers(plan(text), WORLD)
    states: dict[str, list[dict[str, Tensor]]] = {
        p.name: [{} for _ in range(WORLD)] for p in PARAMETERS
    }
    for step in range(4):
        found = workers.exchange(of_all(step))
        for p in PARAMETERS:
            own = workers.plan.strategy_of(p.name)
            if "qsgd" in str(own):  # its dice depend on the name, which lockstep does not know
                continue
            wanted, _ = gradwire.lockstep(
                own, [g[p.name] for g in of_all(step)], step=step, state=states[p.name]
            )
            if "powersgd" not in str(own):
                assert torch.equal(found[p.name], wanted[0])
            else:  # its dice depend on the name, too
                assert found[p.name].shape == wanted[0].shape
        assert workers.step == step + 1
        assert sum(workers.trace.bytes_sent) > 0


@pytest.mark.parametrize(
    "texts",
    [
        ("topk(0.1)+ef | allgather", *DENSE),
        (
            "none | allreduce",
            "topk(0.1)+ef | allgather",
            "onebit+ef | alltoall",
            "none | allreduce",
        ),
    ],
)
def test_all_that_waits_arrives_under_the_next_plan(texts: tuple[str, ...]) -> None:
    workers, given, arrived, step = Workers(plan(texts[0]), WORLD), {}, {}, 0  # type: ignore[var-annotated]
    for text in texts:
        workers.adopt(plan(text, 400))
        for _ in range(3):
            for name, x in workers.exchange(of_all(step)).items():
                arrived[name] = arrived.get(name, 0) + x.double()
            for name, x in mean(step).items():
                given[name] = given.get(name, 0) + x.double()
            step += 1
    for name, x in given.items():
        torch.testing.assert_close(arrived[name], x, rtol=0, atol=1e-5)


def test_warm_up_goes_on_with_the_dense_momentum() -> None:
    """Dense, then all entries unmasked, it is one recurrence throughout: u = m·u + mean."""
    whole, warmup = plan("dgc(1.0, mask=False) | allgather"), Warmup(4, (1.0,))
    workers = Workers(at_density(whole, warmup.density(0), WORLD), WORLD)
    assert "server_momentum" in str(workers.plan.strategy_of("a"))
    u = {p.name: torch.zeros(p.shape) for p in PARAMETERS}
    for step in range(8):
        now = at_density(whole, warmup.density(step), WORLD)
        if now != workers.plan:
            workers.adopt(now)
        found = workers.exchange(of_all(step))
        for name, x in mean(step).items():
            u[name] = 0.9 * u[name] + x
            torch.testing.assert_close(found[name], u[name], rtol=0, atol=1e-5)
    assert step > 4
    assert "dgc" in str(workers.plan.strategy_of("a"))


@pytest.mark.parametrize("nesterov", [False, True])
def test_no_mass_is_lost_when_the_density_falls(nesterov: bool) -> None:
    """For dgc, sent + residual is the sum of velocities, across every change of k."""
    whole = plan(f"dgc(0.01, nesterov={nesterov}, mask=False) | allgather")
    workers = Workers(at_density(whole, 0.1, WORLD), WORLD)
    u, total, arrived = torch.zeros(20, 30), torch.zeros(20, 30), torch.zeros(20, 30)
    for step, density in enumerate((0.1, 0.1, 0.05, 0.05, None, None)):
        now = at_density(whole, density, WORLD)
        if now != workers.plan:
            workers.adopt(now)
        arrived += workers.exchange(of_all(step))["a"]
        g = mean(step)["a"]
        u = 0.9 * (u + g) if nesterov else 0.9 * u + g
        total += u + g if nesterov else u
    kept = sum(ledger.memory["a"]["residual"].view(20, 30) for ledger in workers.ledgers) / WORLD
    torch.testing.assert_close(arrived + kept, total, rtol=0, atol=1e-5)


def test_one_bad_gradient_spoils_the_step_and_nothing_else() -> None:
    workers = Workers(plan("topk(0.1)+ef | allgather"), WORLD)
    workers.exchange(of_all(0))
    before = [{n: s["residual"].clone() for n, s in ledger.memory.items() if s}
              for ledger in workers.ledgers]  # fmt: skip
    bad = of_all(1)
    bad[1]["a"][0, 0] = float("inf")
    found = workers.exchange(bad)
    assert bool(found["a"].isnan().all())
    after = [{n: s["residual"] for n, s in ledger.memory.items() if s}
             for ledger in workers.ledgers]  # fmt: skip
    for one, other in zip(before, after):
        torch.testing.assert_close(other["a"], one["a"], rtol=0, atol=1e-5)


def test_what_waits_follows_the_scale_of_gradients() -> None:
    """Powers of two are exact: averages are those of unscaled gradients, times the scale."""
    plain, scaled = (Workers(plan("dgc(0.1) | allgather"), WORLD) for _ in range(2))
    last = 1.0
    for step, scale in enumerate((1024.0, 1024.0, 512.0, 2048.0)):
        for ledger in scaled.ledgers:
            ledger.scale(scale / last)
        last = scale
        wanted = plain.exchange(of_all(step))
        found = scaled.exchange([{n: x * scale for n, x in g.items()} for g in of_all(step)])
        for name, x in wanted.items():
            assert torch.equal(found[name], x * scale)


def test_what_waits_was_clipped_when_it_came() -> None:
    """The next gradients are clipped; the residual beside them is not clipped again."""
    workers = Workers(plan("topk(0.1)+ef | allgather"), WORLD)
    arrived = workers.exchange(of_all(0))
    workers.adopt(plan("none | allreduce"))
    found = workers.exchange(of_all(1), [0.25] * WORLD)
    for name, x in found.items():
        wanted = mean(0)[name] - arrived[name] + 0.25 * mean(1)[name]
        torch.testing.assert_close(x, wanted, rtol=0, atol=1e-6)


def test_momentum_stays_where_it_is() -> None:
    workers = Workers(plan("dgc(0.1) | allgather"), WORLD)
    with pytest.raises(PlanError, match="must keep momentum where it is"):
        workers.adopt(plan("topk(0.1)+ef | allgather"))


def test_a_plan_of_other_parameters_is_refused() -> None:
    workers = Workers(plan("topk(0.1)+ef | allgather"), WORLD)
    workers.exchange(of_all(0))
    with pytest.raises(PlanError, match="only in the plan: v; only in the model: "):
        workers.adopt(Plan.make([Parameter("v", (2, 2))], "topk(0.1)+ef | allgather"))


@pytest.mark.parametrize("world", [0, -1, 2.0])
def test_there_is_a_worker(world: int) -> None:
    with pytest.raises(UsageError, match=f"ranks, at least 1; got .* and world={world}"):
        Workers(plan("none | allreduce"), world)
    with pytest.raises(UsageError, match="takes a Plan and"):
        Workers("none | allreduce", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "instead", "said"),
    [("c", None, "has none"), ("a", torch.zeros(20, 31), r"has one of shape \[20, 31\]"),
     ("b", torch.zeros(8), r"has one of shape \[8\]")],
)  # fmt: skip
def test_a_gradient_that_is_missing_or_does_not_fit_is_named(
    name: str, instead: Tensor | None, said: str
) -> None:
    workers, given = Workers(plan("topk(0.1)+ef | allgather"), WORLD), of_all(0)
    given[1] = {k: x for k, x in (given[1] | {name: instead}).items() if x is not None}  # type: ignore
    with pytest.raises(UsageError, match=f"a gradient of {name} float32.*; worker 1 {said}"):
        workers.exchange(given)
    assert workers.step == 0


@pytest.mark.parametrize(("given", "scales"), [(2, 0), (4, 0), (3, 2), (3, 4)])
def test_there_is_one_gradient_per_worker(given: int, scales: int) -> None:
    """Else some would count not at all, or those of the step before twice."""
    workers, every = Workers(plan("none | allreduce"), WORLD), [*of_all(0), *of_all(1)]
    workers.exchange(of_all(0))
    with pytest.raises(UsageError, match=rf"3 workers must have .*; got {given} and {scales}\."):
        workers.exchange(every[:given], [0.5] * scales)
    assert workers.step == 1
