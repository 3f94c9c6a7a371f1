"""plan="auto" of replicas that fully_shard has sharded: two exchanges, one decision.

The mesh is that of test_fsdp: of what does not divide evenly, ranks 0 and 2 keep the larger part;
of what has one row, 1 and 3 keep none.
"""

from __future__ import annotations

import json
import warnings
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, brief, fingerprint, raised, won_by
from test_fsdp import loss_of, mesh, parts, replicas, sharded, shards
from test_profile_command import Profiling, path, profile  # noqa: F401 - fixtures
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradwire
from gradwire import Plan, Warmup
from gradwire.buckets import Parameter
from gradwire.errors import PeerError, PlanError, UsageError
from gradwire.planner.profile import Profile
from gradwire.runtime.torch_dist import Performer
from gradwire.training import guard
from gradwire.training.integrations import torchtitan
from gradwire.training.trainable import shard_of
from gradwire.tuning import auto
from gradwire.tuning.probe import Probe
from suites import first

PATIENCE = 4000  # steps
FP32, TOPK, INT8 = "none | allreduce", "topk(0.1)+ef | allgather", "int8+ef | alltoall"
STRATEGIES = [TOPK, INT8]


def tuned(model: nn.Module, **options: Any) -> Any:
    return gradwire.attach(
        model, "auto", replicas(),
        **{"strategies": STRATEGIES, "timeout_seconds": 30.0, **options},
    )  # fmt: skip


def train_until(model: nn.Module, optimizer: Any, is_over: Any, begin: int = 0) -> int:
    """Trains until `is_over`, for PATIENCE steps at most; returns the step."""
    for step in range(begin, PATIENCE):
        if is_over():
            return step
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return PATIENCE


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


@brief()
def settled(strategy: str) -> tuple[Any, ...]:
    """What was found, this rank's part of it, and the fingerprint of its shards."""
    model, asked = sharded(), set[int]()
    handle, optimizer, perform = tuned(model), sgd(model), Performer.perform
    adoptions, adopt = list[Plan](), handle._session.adopt

    def seen(performer: Performer, move: Any, label: str) -> Any:
        if label in ("what ranks measured", "what rank 0 found"):
            asked.add(performer.world)
        return perform(performer, move, label)

    def adopted(plan: Plan) -> None:
        adoptions.append(plan)
        adopt(plan)

    with (
        won_by(strategy, races=True), patch.object(Performer, "perform", seen),
        patch.object(handle._session, "adopt", adopted),
    ):  # fmt: skip
        steps = train_until(model, optimizer, lambda: handle.tuner.is_settled)
    assert asked == {4}, "all ranks are asked, whatever is measured and decided"
    assert all(a != b for a, b in pairwise(adoptions)), "a plan in force is not adopted again"
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    own = {p.name: p.shape for b in handle.plan.buckets for p in b.parameters}
    kept = {
        n: tuple(shard_of(p).shape) for n, p in model.named_parameters() if shard_of(p).numel()
    }
    assert own == kept, "a plan is of this rank's parts"
    found = handle.tuner.profile
    raced = [plan.to_json() for plan, _ in handle.tuner.raced]
    handle.detach()
    return (
        (steps < PATIENCE, str(handle.plan.main_strategy), found.to_json(), raced),
        kept, fingerprint(parts(model)), handle.plan.digest(),
    )  # fmt: skip


@pytest.mark.parametrize("strategy", first([TOPK, INT8]))
def test_all_ranks_settle_on_one_plan(four: Ranks, strategy: str) -> None:
    agreed, kept, weights, digests = zip(*four.run(settled, strategy))
    assert agreed == (agreed[0],) * 4, "what was measured, what raced and what won"
    assert agreed[0][:2] == (True, strategy)
    assert weights[0] == weights[2] != weights[1] == weights[3], "replicas are equal to the bit"
    assert digests[0] == digests[2] != digests[1] == digests[3]
    shapes = {p.name: p.shape for p in Profile.from_json(agreed[0][2]).parameters}
    assert shapes == kept[0], "of the largest parts"
    assert set(kept[0]) - set(kept[1]) == {"blocks.0.gain", "blocks.1.gain"}


@brief()
def like_fsdp() -> list[bool]:
    """Whether three steps by an adopted fp32 plan equal fully_shard's own averages over
    replicas."""
    model, own = sharded(), sharded(mesh=mesh())
    handle, optimizer = tuned(model), sgd(model)
    with won_by(FP32):
        train_until(model, optimizer, lambda: handle.tuner.is_settled)
    assert {str(s) for s in handle.plan.strategies} == {FP32}
    with torch.no_grad():
        for mine, its in zip(parts(model), parts(own)):
            its.copy_(mine)
    for m, stepping in ((model, optimizer), (own, sgd(own))):
        for step in range(3):
            stepping.zero_grad()
            loss_of(m, step).backward()
            stepping.step()
    handle.detach()
    return [torch.equal(a, b) for a, b in zip(parts(model), parts(own))]


def test_fp32_is_fully_shard_s_own_training(four: Ranks) -> None:
    for same in four.run(like_fsdp):
        assert same
        assert all(same)


# -- what goes wrong -----------------------------------------------------------------------


def by_some(most: int) -> str:
    """The error where only the ranks below `most` attach."""
    model, said = sharded(), ""
    if dist.get_rank() < most:
        said = raised(lambda: tuned(model, timeout_seconds=2.0), PeerError)
    dist.barrier()
    return said


def test_nobody_hangs_where_some_shards_do_not_attach(four: Ranks) -> None:
    for rank, said in enumerate(four.run(by_some, 2)[:2]):
        assert said.startswith("all ranks must attach")
        assert f"rank {rank + 2}" in said


def given(lists: tuple[list[str], ...]) -> str:
    """The error when each rank has its own list of strategies; the model can be attached
    afterwards."""
    model = sharded()
    text = raised(
        lambda: tuned(model, strategies=lists[dist.get_rank()], timeout_seconds=5.0),
        gradwire.errors.GradwireError,
    )
    with attached(model, TOPK, process_group=replicas()):
        loss_of(model).backward()
    return text


UNKNOWN = ["topk(0.1) | nowhere"]


@pytest.mark.parametrize(
    ("lists", "facts"),
    [
        ((STRATEGIES,) * 3 + (UNKNOWN,), "nowhere"),
        ((STRATEGIES,) * 3 + ([TOPK],), "the same strategies"),
        ((STRATEGIES,) * 3 + (["topk(0.1)+dgc | allgather"],), "server_momentum"),
        ((["lloyd(2)+muon | alltoall"],) * 4, "needs whole matrices"),
    ],
)
def test_what_one_rank_gets_wrong_is_told_on_all(
    four: Ranks, lists: tuple[list[str], ...], facts: str
) -> None:
    for said in four.run(given, lists):
        assert facts in said


@brief()
def broken(place: str, ranks: tuple[int, ...]) -> str:
    """The error when these ranks raise while a plan is found."""
    model = sharded()
    where: Any = Probe if place == "run" else auto
    handle, optimizer = tuned(model, timeout_seconds=5.0), sgd(model)

    def raise_it(*_: object, **__: object) -> None:
        raise ValueError("broken on purpose")

    own = getattr(where, place)
    with patch.object(where, place, raise_it if dist.get_rank() in ranks else own):
        try:
            train_until(model, optimizer, lambda: handle.tuner.is_settled)
        except (ValueError, PlanError, PeerError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            handle.detach()
    return "settled"


def test_what_rank_0_cannot_plan_is_told_on_all(four: Ranks) -> None:
    for said in four.run(broken, "choose", (0,)):
        assert said.startswith("PlanError")
        assert "broken on purpose" in said


def test_nobody_hangs_where_one_rank_raises(four: Ranks) -> None:
    said = four.run(broken, "run", (3,))
    assert said[3].startswith("ValueError")
    assert all(text.startswith("PeerError") for text in said[:3])


def without_parts(plan: str) -> str:
    """A parameter of one row leaves two of four ranks without a shard."""
    model = nn.Sequential(nn.Linear(6, 1, bias=False))
    fully_shard(model, mesh=mesh()["shard"])
    try:
        gradwire.attach(model, plan, replicas(), timeout_seconds=60.0)
    except (UsageError, PlanError) as error:
        return str(error)
    return "attached"


@pytest.mark.parametrize("plan", ["auto", TOPK])
def test_a_rank_that_keeps_nothing_is_told_on_all(four: Ranks, plan: str) -> None:
    began = perf_counter()
    said = four.run(without_parts, plan)
    assert any("shard it over fewer ranks" in text for text in said), said
    assert all(text != "attached" for text in said)
    assert perf_counter() - began < 50, "nobody waited for a timeout"


def adopting() -> str:
    """Rank 3 adopts another plan than rank 1, which keeps the same shards."""
    model = sharded()
    handle = gradwire.attach(model, TOPK, replicas(), timeout_seconds=60.0)
    before = handle.plan
    own = [p for bucket in before.buckets for p in bucket.parameters]
    text = "int8+ef | allgather" if dist.get_rank() == 3 else "bf16 | allreduce"
    try:
        handle.adopt(Plan.make(own, text))
    except PlanError as error:
        return str(error)
    finally:
        assert handle.plan == before
        handle.detach()
    return "adopted"


def test_all_shards_keep_their_plan_if_one_cannot_change(four: Ranks) -> None:
    for rank, said in enumerate(four.run(adopting)):
        if rank % 2:
            assert "must attach the same plan" in said
        else:
            assert "must change plans on all ranks" in said
            assert "rank 1: ! all ranks must attach the same plan" in said


# -- what comes after ----------------------------------------------------------------------


@brief()
def planned_again(look: int) -> list[Any]:
    """Steps always seem to take another time than before, so the tuner plans again; a warm-up
    comes first."""
    model, begun = sharded(), list[int]()
    watch = auto.Tuner._watch

    def counted(tuner: auto.Tuner, steps: int) -> Any:
        begun.append(tuner._session.step)
        return (yield from watch(tuner, steps))

    with (
        patch.object(auto, "_DRIFT", 1.0), patch.object(auto, "_LOOK_EVERY", look),
        patch.object(auto.Tuner, "_watch", counted),
    ):  # fmt: skip
        handle, optimizer = tuned(model, warmup=Warmup(60)), sgd(model)
        whole = list[bool]()

        def is_over() -> bool:
            whole.append({str(s) for s in handle.plan.strategies} == {FP32})
            return len(begun) > 1

        steps = train_until(model, optimizer, is_over)
    assert all(whole[:60]), "all travels whole until the warm-up is over"
    handle.detach()
    return [steps < PATIENCE, begun, fingerprint(parts(model))]


@pytest.mark.full
def test_drift_is_seen_on_all_ranks_at_once(four: Ranks) -> None:
    found = four.run(planned_again, 5)
    assert found[0] == found[2]
    assert [x[:2] for x in found] == [found[0][:2]] * 4
    assert found[0][0]


@brief()
def harmed(ranks: tuple[int, ...]) -> list[Any]:
    """The guards of these ranks take whatever they see for harm."""
    model = sharded()
    limit = -1.0 if dist.get_rank() in ranks else 9.0
    with (
        patch.object(guard, "WINDOW", 4), patch.object(guard, "LIMIT", limit),
        patch.object(auto, "_LOOK_EVERY", 6), patch.object(auto, "_DRIFT", 1e9),
        warnings.catch_warnings(), won_by(TOPK),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        handle, optimizer = tuned(model), sgd(model)
        steps = train_until(model, optimizer, lambda: handle.tuner.is_settled)
        before = str(handle.plan.main_strategy)
        for step in range(steps, steps + 16):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    found = [before, str(handle.plan.main_strategy), len(handle.guard.apart)]
    handle.detach()
    return [*found, fingerprint(parts(model))]


def test_harm_that_one_shard_sees_ends_the_search_on_all(four: Ranks) -> None:
    found = four.run(harmed, (1, 3))
    assert [x[:3] for x in found] == [[TOPK, FP32, 1]] * 4
    assert found[0] == found[2]


def apart(strategy: str) -> list[float]:
    """The distance between the guard's two paths in a window, on this rank's shards."""
    model = sharded()
    with (
        patch.object(guard, "WINDOW", 6), warnings.catch_warnings(),
        attached(model, strategy, process_group=replicas(), guard=True) as handle,
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        (found,) = handle.guard.apart  # type: ignore[union-attr]
        assert found.matrices is None
        return [found.elements]


def test_the_guard_watches_shards(four: Ranks) -> None:
    for (found,) in four.run(apart, FP32):
        assert found < 1e-5
    far = four.run(apart, "topk(0.01)+ef | allgather")
    assert far[0] == far[2]
    assert all(found > 0.1 for (found,) in far)


@brief()
def resumed(directory: str) -> None:
    """A state that is saved while a plan with residuals is in force is loaded by `auto`, or by
    that plan."""
    model, folder = sharded(), Path(directory)
    handle, optimizer = tuned(model), sgd(model)
    with won_by(TOPK):
        train_until(model, optimizer, lambda: handle.tuner.is_settled)
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    step = handle._session.step
    waits, saved = handle._session.ledger.waiting(), handle.state_dict()
    assert any(x.any() for x in waits.values()), "something waits in residuals"
    file = folder / "plan.json"
    if dist.get_rank() == 0:
        handle.plan.save(file)
    dist.barrier()
    handle.detach()
    for plan, options in (("auto", {"strategies": STRATEGIES}), (TOPK, {}), (str(file), {})):
        other: Any = gradwire.attach(model, plan, replicas(), timeout_seconds=20.0, **options)
        if plan == str(file):
            assert [b.names for b in other.plan.buckets] == [b.names for b in handle.plan.buckets]
            assert other.plan.strategies == handle.plan.strategies
        other.load_state_dict(saved)
        assert other.state_dict()["step"] == step
        found = other._session.ledger.waiting()
        assert all(torch.equal(found[name], x) for name, x in waits.items())
        model.zero_grad()
        loss_of(model, 1).backward()
        other.detach()


def test_what_is_saved_loads_whatever_plan_is_in_force(four: Ranks, tmp_path: Path) -> None:
    four.run(resumed, str(tmp_path))


@brief()
def by_hand() -> list[Any]:
    """One plan of whole parameters is adopted on all ranks; the tuner then measures nothing."""
    model = sharded()
    whole = [Parameter(n, tuple(p.shape)) for n, p in model.named_parameters()]
    plan = Plan.make(whole, TOPK, bucket_bytes=800)
    handle = tuned(model)
    handle.adopt(plan)
    for step in range(9):  # three more than tuning watches
        model.zero_grad()
        loss_of(model, step).backward()
    names = [b.names for b in handle.plan.buckets]
    wanted = [tuple(n for n in b.names if n in handle._session.parameters) for b in plan.buckets]
    assert names == [own for own in wanted if own]
    assert handle.tuner.profile is None
    assert any(x.any() for x in handle._session.ledger.waiting().values())
    handle.detach()
    with pytest.raises(UsageError, match="whole matrices"):
        gradwire.attach(
            model, Plan.make(whole, "lloyd(2)+muon | alltoall"), replicas(), timeout_seconds=9.0
        )
    others = [Parameter(p.name, p.shape[::-1]) for p in whole]
    with pytest.raises(PlanError, match="different: "):
        gradwire.attach(model, Plan.make(others, TOPK), replicas(), timeout_seconds=9.0)
    return [fingerprint(shards(model).values())]


def test_a_plan_of_whole_parameters_is_adopted_by_parts(four: Ranks) -> None:
    found = four.run(by_hand)
    assert found[0] == found[2] != found[1] == found[3]


@brief()
def beside_adam() -> tuple[Any, ...]:
    """A plan that keeps the moments, for shards."""
    model = sharded()
    optimizer = gradwire.optim.AdamW(model.parameters(), lr=0.003)
    handle: Any = gradwire.attach(
        model, "auto", replicas(), optimizer=optimizer, timeout_seconds=30.0
    )
    began = str(handle.plan.main_strategy)
    with won_by("lloyd(2)+adam | allgather"):
        steps = train_until(model, optimizer, lambda: handle.tuner.is_settled)
    train_until(model, optimizer, lambda: handle._session.step > steps + 2, steps)
    handle.detach()
    return steps < PATIENCE, began, str(handle.plan.main_strategy), fingerprint(parts(model))


@pytest.mark.full
def test_plans_that_keep_moments_are_found_for_shards(four: Ranks) -> None:
    found = four.run(beside_adam)
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert {x[:3] for x in found} == {(True, "none+adam | allreduce", "lloyd(2)+adam | allgather")}


@brief()
def as_in_torchtitan() -> tuple[Any, ...]:
    """Micro-batches: the tuner sees one step for all of them, at the last one's backward."""
    model = sharded()
    options: Any = {"strategies": STRATEGIES, "timeout_seconds": 30.0}
    handle: Any = torchtitan.attach(model, "auto", mesh()["replicate"], **options)
    optimizer, steps = sgd(model), 0
    with won_by(TOPK):
        while not handle.tuner.is_settled and steps < PATIENCE:
            optimizer.zero_grad()
            for i in range(2):
                with torchtitan.micro_batch(handle, i, 2):
                    loss_of(model, 2 * steps + i).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
    exchanged = handle._session.step
    handle.detach()
    return steps < PATIENCE, exchanged - steps, str(handle.plan.main_strategy)


@pytest.mark.full
def test_micro_batches_of_a_mesh(four: Ranks) -> None:
    assert four.run(as_in_torchtitan) == [(True, 0, TOPK)] * 4


JOB = """
import torch, torch.distributed as dist, gradwire
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = torch.nn.Sequential(torch.nn.Linear(64, 63), torch.nn.Tanh(), torch.nn.Linear(63, 1))
fully_shard(model, mesh=mesh["shard"])
gradwire.attach(model, "none | allreduce", mesh["replicate"].get_group())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
print("trained to the end")
"""


@pytest.mark.full
def test_a_sharded_job_is_profiled(profile: Profiling, path: Path) -> None:  # noqa: F811
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = profile("--json", "--strategies", TOPK, script=JOB, launcher=launcher)
    assert done.code == 0, done.stderr
    assert "trained to the end" not in done.stderr
    assert json.loads(done.stdout)["path"] == str(path)
    found = Profile.load(path)
    assert found.world == 2, "what is priced is the exchange of one shard's replicas"
    assert {p.name: p.shape for p in found.parameters} == {
        "0.weight": (32, 64), "0.bias": (32,), "2.weight": (1, 63), "2.bias": (1,),
    }  # fmt: skip
    assert found.strategies[TOPK].error is not None
    assert "all_gather uint8 world" in found.moves
