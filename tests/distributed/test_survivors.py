"""A job attached with on_failure="shrink" goes on when ranks are lost, and takes up new ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from broken import WIDE
from ranks import Ranks, stories
from small import batch, fingerprint, local_gradients, loss_of, raised, small, zero
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import PeerError, UsageError
from gradwire.runtime import roster
from gradwire.testing import Die, Fault, Stall, inject
from gradwire.training import survivors

TOPK = "topk(0.1)+ef | allgather"
STRATEGIES = {
    TOPK: "sgd",
    "none | allreduce": "momentum",
    "dgc(0.1) | allgather": "ours",
    "powersgd(2)": "sgd",
    "int8+ef | alltoall": "sgd",
    "topk(0.1)+ef21 | allgather": "sgd",
    "lloyd(2)+adam | alltoall": "adam",
}
"""Strategies, each with an optimizer: with residuals of ranks and of owners, momenta of ranks,
estimates, and factors and moments that all ranks share."""


class End(NamedTuple):
    """What a rank had when training ended."""

    weights: str
    optimizer: str
    step: int
    world: int
    said: list[str]


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    made: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05),
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "ours": lambda p: gradwire.optim.SGD(p, 0.05, momentum=0.9),
        "adam": lambda p: gradwire.optim.AdamW(p, 1e-2),
    }
    own: torch.optim.Optimizer = made[kind](model.parameters())
    return own


def attached(model: nn.Module, plan: str, optimizer: Any, **options: Any) -> gradwire.Handle:
    return gradwire.attach(
        model, plan, optimizer=optimizer, on_failure="shrink",
        **{"timeout_seconds": 30.0, "check_every": 1, "bucket_bytes": 1, **options},
    )  # fmt: skip


def train(
    handle: gradwire.Handle, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
) -> End:
    said = list[str]()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        while handle.step < steps:
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
        said += [str(w.message) for w in seen if " on, from step" in str(w.message)]
    state = [x for own in optimizer.state.values() for x in own.values() if isinstance(x, Tensor)]
    end = End(
        fingerprint(model.parameters()), fingerprint(state), handle.step, dist.get_world_size(),
        said,
    )  # fmt: skip
    handle.detach()
    return end


def with_a_death(plan: str, lost: int, at: int, steps: int = 8) -> End:
    model = small()
    optimizer = optimizer_of(STRATEGIES[plan], model)
    handle = attached(model, plan, optimizer)
    inject(handle, Die(at=at), rank=lost, lane=0)
    return train(handle, model, optimizer, steps)


def same(found: list[End], world: int, step: int) -> None:
    assert len({end.weights for end in found}) == 1
    assert len({end.optimizer for end in found}) == 1
    assert [(end.step, end.world) for end in found] == [(step, world)] * len(found)


@pytest.mark.parametrize("plan", STRATEGIES)
def test_a_rank_is_killed_and_the_others_go_on(tmp_path: Path, plan: str) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(with_a_death, plan, 1, 13)
    assert outcomes[1].died
    left = [outcomes[r].value for r in (0, 2)]
    assert all(outcome.ok for r, outcome in enumerate(outcomes) if r != 1), stories(outcomes)
    same(left, world=2, step=8)
    assert "process 1 was lost; 2 ranks go on, from step" in left[0].said[0]
    assert left[1].said == []


def test_rank_0_is_killed(tmp_path: Path) -> None:
    """Another rank is rank 0 then; the store is a file here."""
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(with_a_death, TOPK, 0, 13)
    same([outcomes[r].value for r in (1, 2)], world=2, step=8)


def _two_deaths() -> End:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = attached(model, TOPK, optimizer)
    inject(handle, Die(at=9), rank=1, lane=0)
    if dist.get_rank() == 2:  # dies where the others attach again
        survivors.Survivors.catch_up = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    return train(handle, model, optimizer, 8)


def test_another_rank_is_killed_while_the_others_meet(tmp_path: Path) -> None:
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_two_deaths)
    assert [outcome.died for outcome in outcomes] == [False, True, True, False]
    assert all(outcomes[r].ok for r in (0, 3)), stories(outcomes)
    found = [outcomes[r].value for r in (0, 3)]
    same(found, world=2, step=8)
    assert "process 1 was lost, process 2 was lost" in found[0].said[0]


def test_the_last_rank_trains_alone(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        outcomes = ranks.outcomes(with_a_death, TOPK, 0, 9)
    assert outcomes[1].ok, outcomes[1]
    assert outcomes[1].value.world == 1


@dataclass(frozen=True)
class StuckUntil(Fault):
    """Stops before move 9 until two other ranks have trained to their end."""

    store: Any

    def before(self, number: int, move: Any) -> Any:
        if number == 9:
            self.store.wait(["0", "2"], timedelta(seconds=WIDE))
        return move


def _stuck(place: str) -> Any:
    store, rank = dist.FileStore(place, 3), dist.get_rank()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = attached(model, TOPK, optimizer, timeout_seconds=6.0)
    if rank == 1:
        own = survivors._ROSTER
        assert own is not None
        own.close()  # as if this process did not run
        inject(handle, StuckUntil(store))
        return raised(lambda: train(handle, model, optimizer, 8), PeerError)
    end = train(handle, model, optimizer, 8)
    store.set(f"{rank}", "over")
    return end


def test_who_was_stuck_is_left_behind(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_stuck, str(tmp_path / "over"))
    assert "went on without this one" in outcomes[1].value
    same([outcomes[r].value for r in (0, 2)], world=2, step=8)


def _slow() -> End:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = attached(model, TOPK, optimizer)
    inject(handle, Die(at=9), rank=0, lane=0)
    inject(handle, Stall(at=9, seconds=2.0 * roster.SILENT_SECONDS), rank=2, lane=0)
    return train(handle, model, optimizer, 8)


def test_who_is_slow_is_waited_for(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_slow)
    same([outcomes[r].value for r in (1, 2)], world=2, step=8)


# -- ranks that come ---------------------------------------------------------------------------


def _with_a_newcomer(place: str, plan: str) -> Any:
    """Ranks 0 to 2 train; rank 2 is killed; the fourth process takes its place."""
    process = dist.get_rank()
    store = dist.FileStore(place, 4)
    if process == 3:
        while not store.check(["gradwire/1/processes"]):
            threading.Event().wait(0.05)
    rank = 2 if process == 3 else process
    survivors.init_by(store, rank, 3, "gloo", 60.0)
    model = small(seed=process)
    optimizer = optimizer_of(STRATEGIES[plan], model)
    handle = attached(model, plan, optimizer)
    began = handle.step, dict(handle.state_dict())["ranks"] if process == 3 else None
    if process == 2:
        inject(handle, Die(at=13), lane=0)
    end = _train_until(handle, model, optimizer, 4, 8)
    return end, began


def _train_until(
    handle: gradwire.Handle, model: nn.Module, optimizer: torch.optim.Optimizer, world: int,
    more: int,
) -> End:  # fmt: skip
    """Trains until the rank that was lost is back, and so many steps more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        came = handle.step if handle.step else None
        lost = False
        while came is None or handle.step < came + more:
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
            lost |= dist.get_world_size() == 2
            if came is None and lost and dist.get_world_size() == 3:
                came = handle.step
    return train(handle, model, optimizer, 0)


@pytest.mark.parametrize("plan", STRATEGIES)
def test_a_rank_comes_back(tmp_path: Path, plan: str) -> None:
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_with_a_newcomer, str(tmp_path / "own"), plan)
    assert outcomes[2].died
    assert all(outcomes[r].ok for r in (0, 1, 3)), stories(outcomes)
    ends = [outcomes[r].value[0] for r in (0, 1, 3)]
    same(ends, world=3, step=ends[0].step)
    step, entries = outcomes[3].value[1]
    assert step > 0
    (entry,) = entries.values()
    waiting = [own["residual"] for own in entry["state"].values() if "residual" in own]
    assert not any(x.any() for x in waiting), "nothing waits on a rank that has come"


# -- residuals ---------------------------------------------------------------------------------


def test_what_a_rank_has_not_sent_counts_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks become three: v/4 is what it was in the mean, and (v · 3/4)/3 is the same."""
    own = {"part": [0, 1], "tensors": 1, "state": {"w": {"residual": torch.tensor([4.0, 8.0])}}}
    before = {"ranks": {"2": own}, "plan": {TOPK: ["w"]}, "taken": 0, "world": 4}
    monkeypatch.setattr(survivors, "state_of", lambda _: {"ranks": {"1": {"part": [0, 1]}}})
    session: Any = SimpleNamespace(world=3, ledger=SimpleNamespace(sizes={"w": 2}))
    optimizer = torch.optim.SGD([torch.zeros(2)], 0.1)
    entry = survivors._Memory(optimizer, before).entry(session)
    assert entry is not None
    assert entry["ranks"]["1"]["state"]["w"]["residual"].tolist() == [3.0, 6.0]


def _by_estimates() -> tuple[int, float]:
    """The number of ranks after a loss, and how far their averages are from the mean then."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    handle = attached(model, "int8+ef21 | allgather", optimizer)
    inject(handle, Die(at=13), rank=1, lane=0)
    train_to(handle, model, 8)
    wanted = local_gradients(model)["one.weight"]
    dist.all_reduce(wanted)
    wanted /= dist.get_world_size()
    found = model.one.weight.grad
    assert found is not None
    handle.detach()
    return dist.get_world_size(), float((found - wanted).norm() / wanted.norm())


def train_to(handle: gradwire.Handle, model: nn.Module, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while handle.step < steps:
            model.zero_grad()
            loss_of(model).backward()


def test_estimates_of_a_lost_rank_are_not_averaged_for_ever(tmp_path: Path) -> None:
    """Of `ef21` all ranks know the mean of all estimates, those of the lost rank too."""
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_by_estimates)
    for rank in (0, 2):
        world, apart = outcomes[rank].value
        assert world == 2
        assert apart < 0.03


# -- what is refused ---------------------------------------------------------------------------


def _refused(what: str) -> str:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    options: dict[str, Any] = {"optimizer": optimizer, "on_failure": "shrink"}
    plan = TOPK
    module: nn.Module = model
    if what == "ddp":
        module = DistributedDataParallel(model)
    elif what == "group":
        options["process_group"] = dist.new_group()
    elif what == "name":
        options["optimizer"] = "sgd"
    elif what == "zero":
        options["optimizer"] = zero(model, torch.optim.AdamW)
    elif what == "group's value":
        options["optimizer"].param_groups[0]["schedule"] = lambda step: step
    elif what == "scaler":
        options["scaler"] = torch.amp.GradScaler("cpu")
    elif what == "word":
        options["on_failure"] = "ignore"
    return raised(lambda: gradwire.attach(module, plan, **options), UsageError)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("ddp", "needs a plain module"),
        ("group", "the default process group"),
        ("name", "the optimizer itself"),
        ("zero", "an optimizer with all of its state on each rank"),
        ("group's value", "values in its groups that torch.load(weights_only=True) reads"),
        ("scaler", "no GradScaler"),
        ("word", "on_failure must be 'raise' or 'shrink'; got 'ignore'"),
    ],
)
def test_what_cannot_go_on_is_refused(three: Ranks, what: str, words: str) -> None:
    assert all(words in text for text in three.run(_refused, what))


def _with_a_scaler_that_is_off() -> str:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    handle = gradwire.attach(model, TOPK, optimizer=optimizer, scaler=scaler, on_failure="shrink")
    scaler.scale(loss_of(model, 0)).backward()
    scaler.step(optimizer)
    handle.detach()
    return fingerprint(model.parameters())


def test_a_scaler_that_is_off_is_none(tmp_path: Path) -> None:
    """A script may make one in any case, and enable it for fp16 alone."""
    with Ranks(2, tmp_path) as ranks:
        assert len(set(ranks.run(_with_a_scaler_that_is_off))) == 1


def _second_model() -> str:
    one, other = small(), small()
    own, its = (torch.optim.SGD(m.parameters(), 0.05) for m in (one, other))
    handle = attached(one, TOPK, own)
    text = raised(lambda: attached(other, TOPK, its), UsageError)
    handle.detach()
    attached(other, TOPK, its).detach()
    return text


def test_one_model_of_a_process_goes_on(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        assert all("no other model" in text for text in ranks.run(_second_model))


def _accordion() -> str:
    model = small()
    handle = attached(model, TOPK, torch.optim.SGD(model.parameters(), 0.05))
    text = raised(lambda: gradwire.Accordion(handle, 0.5, 10), UsageError)
    handle.detach()
    return text


def test_accordion_needs_the_same_ranks_throughout(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        assert all("after equally many steps" in text for text in ranks.run(_accordion))


# -- as a user would ---------------------------------------------------------------------------


def test_the_example_loses_a_rank_and_gets_it_back() -> None:
    script = Path(__file__).parents[2] / "examples" / "survivors.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "STEPS": "600",
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def start(what: str, *before: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", *before, str(script), what]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)

    # The one that comes has imported torch by then, so that the others need fewer steps.
    waits = (
        "import runpy, sys, torch, gradwire; gradwire.attach; del sys.argv[0]; print('ready'); "
        "sys.stdout.flush(); sys.stdin.readline(); runpy.run_path(sys.argv[0], {}, '__main__')"
    )
    with ExitStack() as all_of_them:
        again = all_of_them.enter_context(start("1", "-c", waits))
        begun = [all_of_them.enter_context(start(what)) for what in ("store", "0", "1", "2")]
        for process in (again, *begun):
            all_of_them.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline(), "it has begun"
        begun[2].kill()
        print(file=again.stdin, flush=True)
        said = [process.stdout.read() for process in (begun[1], begun[3], again)]  # type: ignore
    assert "rank 0 of 2" in said[0]
    assert "rank 1 of 2" in said[1]
    assert "rank 2 of 3" in said[2]
    assert all("step 600: loss" in text for text in said)
