"""torch.distributed.checkpoint: each rank's residuals beside the model, for any world size."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from small import attached, entry, fingerprint, from_all, loss_of, small
from torch import Tensor, nn

import gradwire
from gradwire import Warmup
from gradwire.errors import PlanError
from suites import first

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed:UserWarning")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.8**step  # residuals are rescaled with it
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def made(strategy: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = small(seed)
    momentum = 0.9 if "dgc" in strategy or "momentum" in strategy else 0.0
    return model, gradwire.optim.SGD(model.parameters(), 0.05, momentum=momentum)


def state(
    model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any = None
) -> dict[str, Any]:
    more = {} if handle is None else {"gradwire": handle.state_dict()}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}


def saved(strategy: str, folder: str, steps: int) -> tuple[str, str]:
    """The weights' fingerprints after training and saving, and after training on."""
    model, optimizer = made(strategy)
    with attached(model, strategy, seed=3) as handle:
        train(model, optimizer, range(steps))
        dcp.save(state(model, optimizer, handle), checkpoint_id=folder)
        here = fingerprint(model.parameters())
        train(model, optimizer, range(steps, 2 * steps))
    return here, fingerprint(model.parameters())


def saved_meanwhile(strategy: str, folder: str, steps: int) -> tuple[str, str]:
    """As `saved`, written while training goes on."""
    model, optimizer = made(strategy)
    with attached(model, strategy, seed=3) as handle:
        train(model, optimizer, range(steps))
        written: Any = dcp.async_save(state(model, optimizer, handle), checkpoint_id=folder)
        here = fingerprint(model.parameters())
        train(model, optimizer, range(steps, 2 * steps))
        written.result()
    return here, fingerprint(model.parameters())


def resumed(strategy: str, folder: str, steps: int) -> tuple[str, str]:
    model, optimizer = made(strategy, seed=9)
    found = state(model, optimizer)
    dcp.load(found, checkpoint_id=folder)
    optimizer.load_state_dict(found["optimizer"])
    here = fingerprint(model.parameters())
    with attached(model, strategy, seed=3) as handle:
        handle.load_checkpoint(folder)
        assert handle.state_dict()["step"] == steps
        train(model, optimizer, range(steps, 2 * steps))
    return here, fingerprint(model.parameters())


@pytest.mark.parametrize(
    "strategy",
    first(
        [
            "dgc(0.1) | allgather",
            "topk(0.1)+ef | gtopk",
            "qsgd(4)+ef | alltoall",
            "randk(0.1)+ef | allreduce",
            "terngrad | allgather",
            "powersgd(2)",
            "sign | vote",
            "onebit+shared_momentum | alltoall",
            "topk(0.1)+ef | hierarchical('allgather', per_node=2)",
        ],
        4,
    ),
)
def test_resume_is_the_uninterrupted_run(four: Ranks, strategy: str, tmp_path: Path) -> None:
    """The resumed run ends with the same bits, with stochastic compressors, too."""
    wanted = four.run(saved, strategy, str(tmp_path), 3)
    assert four.run(resumed, strategy, str(tmp_path), 3) == wanted


@pytest.mark.parametrize("strategy", ["dgc(0.1) | allgather", "qsgd(4)+ef | alltoall"])
def test_what_is_written_meanwhile_is_of_one_step(
    four: Ranks, strategy: str, tmp_path: Path
) -> None:
    wanted = four.run(saved_meanwhile, strategy, str(tmp_path), 3)
    assert four.run(resumed, strategy, str(tmp_path), 3) == wanted


def waits(strategy: str, folder: str, then: str) -> list[Tensor]:
    """The average of all ranks' residuals, which are loaded if there is a folder, saved again, and
    trained on with."""
    model, optimizer = made(strategy)
    with attached(model, strategy) as handle:
        if folder:
            handle.load_checkpoint(folder)
        else:
            train(model, optimizer, range(3))
        waiting = handle._session.ledger.waiting()
        found = [sum(from_all(waiting[n])) / dist.get_world_size() for n in sorted(waiting)]
        dcp.save({"gradwire": handle.state_dict()}, checkpoint_id=then)
        train(model, optimizer, range(3, 5))
        assert len({fingerprint([x]) for x in from_all(next(model.parameters()))}) == 1
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    "strategy",
    first(
        [
            "dgc(0.1) | allgather",
            "qsgd(4)+ef | alltoall",
            "topk(0.1)+ef | gtopk",
            "onebit+shared_momentum | alltoall",
            "powersgd(2)",
        ],
        2,
    ),
)
def test_four_two_four_three(
    four: Ranks, three: Ranks, two: Ranks, strategy: str, tmp_path: Path
) -> None:
    """The average of residuals is the same whatever the number of ranks."""
    folder, wanted = "", None
    for i, ranks in enumerate((four, two, four, three, two)):
        then = str(tmp_path / f"{i}")
        first, *others = ranks.run(waits, strategy, folder, then)
        wanted = wanted or first
        for own in (first, *others):
            for found, want in zip(own, wanted, strict=True):
                scale = float(want.abs().max()) + 1e-30
                assert float((found - want).abs().max()) <= 1e-6 * max(1.0, scale)
        assert any(float(x.abs().max()) > 1e-4 for x in wanted)
        folder = then


def amid_warm_up(strategy: str, folder: str, then: str) -> tuple[list[Tensor], str]:
    """How far the memory of all ranks still moves weights, and how matrices travel: a density of
    25 % is sparse among two ranks, dense among more."""
    model, optimizer = made(strategy)
    with attached(model, strategy, warmup=Warmup(9, (0.25, 0.12))) as handle:
        if folder:
            handle.load_checkpoint(folder)
        else:
            train(model, optimizer, range(3))
        plan = str(handle.plan.strategy_of("one.weight"))
        ledger, kept = handle._session.ledger, 0.9 * ("dgc" in strategy)
        found = []
        for name, p in model.named_parameters():
            state, nothing = ledger.memory[name], torch.zeros(p.numel())
            own = state.get("residual", nothing) + ledger.leftovers.get(name, nothing) / (1 - kept)
            own = own + state.get("velocity", nothing) * (kept / (1 - kept))
            found.append(sum(from_all(own.reshape(-1))) / dist.get_world_size())
        dcp.save({"gradwire": handle.state_dict()}, checkpoint_id=then)
        train(model, optimizer, range(3, 7))
        assert len({fingerprint([x]) for x in from_all(next(model.parameters()))}) == 1
    return found, plan  # type: ignore[return-value]


@pytest.mark.parametrize("strategy", ["topk(0.1)+ef | allgather", "dgc(0.1) | allgather"])
def test_another_number_of_ranks_amid_a_warm_up(
    three: Ranks, two: Ranks, strategy: str, tmp_path: Path
) -> None:
    wanted, sparse = two.run(amid_warm_up, strategy, "", str(tmp_path / "1"))[0]
    grown = three.run(amid_warm_up, strategy, str(tmp_path / "1"), str(tmp_path / "2"))
    again = two.run(amid_warm_up, strategy, str(tmp_path / "2"), str(tmp_path / "3"))
    assert sparse.startswith("topk(0.25)")
    assert all(plan.startswith("none") for _, plan in grown)
    assert all(plan == sparse for _, plan in again)
    for found, _ in (*grown, *again):
        for own, want in zip(found, wanted, strict=True):
            assert float((own - want).abs().max()) <= 1e-6
    assert any(float(x.abs().max()) > 1e-4 for x in wanted)


def files_loaded(folder: str, strategy: str, names: list[str]) -> str:
    model, optimizer = made(strategy)
    with attached(model, strategy) as handle:
        try:
            handle.load_state_dict([torch.load(f"{folder}/{n}.pt") for n in names])
        except PlanError as error:
            return str(error)
        train(model, optimizer, range(3, 5))
        return f"step {handle.state_dict()['step']}"


def files_saved(folder: str, strategy: str) -> None:
    model, optimizer = made(strategy)
    with attached(model, strategy) as handle:
        train(model, optimizer, range(3))
        torch.save(handle.state_dict(), f"{folder}/{dist.get_rank()}.pt")


def test_a_file_per_rank_for_fewer_ranks(four: Ranks, two: Ranks, tmp_path: Path) -> None:
    strategy, folder = "topk(0.1)+ef | allgather", str(tmp_path)
    four.run(files_saved, folder, strategy)
    assert two.run(files_loaded, folder, strategy, ["0", "1", "2", "3"]) == ["step 5"] * 2
    told = two.run(files_loaded, folder, strategy, ["0", "1"])
    assert "rank 0 needs that of 2, and has that of 0, 1" in told[0]
    assert "rank 1 needs that of 3" in told[1]
    torch.save({**torch.load(tmp_path / "3.pt"), "step": 9}, tmp_path / "3.pt")
    told = two.run(files_loaded, folder, strategy, ["0", "1", "2", "3"])
    assert all("these differ in their step: 3 and 9" in said for said in told)


def rates_of_its_own(folder: str) -> tuple[list[float], ...]:
    """Rates of a rank that has left a Join and steps no more: as trained, by dcp, and by files."""
    model, optimizer = made("topk(0.1)+ef | allgather")
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        train(model, optimizer, range(1))
        optimizer.param_groups[0]["lr"] = 0.5 ** dist.get_rank()
        optimizer.step()
        before = dict(handle._session.rates.units)
        dcp.save({"gradwire": handle.state_dict()}, checkpoint_id=folder)
        torch.save(handle.state_dict(), f"{folder}/{dist.get_rank()}.pt")
        dist.barrier()
        handle.load_checkpoint(folder)
        after = dict(handle._session.rates.units)
        files = [torch.load(f"{folder}/{r}.pt") for r in range(dist.get_world_size())]
        handle.load_state_dict(files)
        again = dict(handle._session.rates.units)
    return tuple([units[name] for name in before] for units in (before, after, again))


def test_each_rank_has_its_rates(four: Ranks, tmp_path: Path) -> None:
    for rank, (before, after, again) in enumerate(four.run(rates_of_its_own, str(tmp_path))):
        assert before == after == again
        assert set(before) == {0.5**rank}


def of_two_groups(folder: str) -> tuple[bool, bool]:
    """Two stages of a pipeline, whose parameters have the same names, share one checkpoint."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    stage = dist.get_rank() % 2
    model = small(seed=stage)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plan, options = "topk(0.1)+ef | allgather", {"process_group": groups[stage]}
    with attached(model, plan, **options) as handle:
        train(model, optimizer, range(3))
        kept = entry(handle)["state"]["one.weight"]["residual"].clone()
        dcp.save({"gradwire": handle.state_dict()}, checkpoint_id=folder)
    with attached(model, plan, **options) as handle:
        handle.load_checkpoint(folder)
        found = entry(handle)["state"]["one.weight"]["residual"]
        state = handle.state_dict()
        try:
            handle.load_state_dict([state, state])
        except PlanError as error:
            return torch.equal(found, kept), "came twice" in str(error)
    return torch.equal(found, kept), False


def test_groups_that_save_beside_each_other(four: Ranks, tmp_path: Path) -> None:
    assert four.run(of_two_groups, str(tmp_path / "both")) == [(True, True)] * 4


def loaded(
    folder: str, key: str = "gradwire", model: nn.Module | None = None, strict: bool = True
) -> str:
    with attached(model or small(), "topk(0.1)+ef | allgather", seed=3) as handle:
        before = entry(handle)["state"]
        try:
            handle.load_checkpoint(folder, key, strict=strict)
        except PlanError as error:
            assert entry(handle)["state"] == before
            return str(error)
    return "loaded"


def test_what_is_no_checkpoint(four: Ranks, tmp_path: Path) -> None:
    strategy, folder = "topk(0.1)+ef | allgather", tmp_path / "one"
    for said in four.run(loaded, str(folder)):
        assert "a folder that torch.distributed.checkpoint.save wrote" in said
    four.run(saved, strategy, str(folder), 2)
    for said in four.run(loaded, str(folder), "compressor"):
        assert "has nothing under 'compressor'" in said
    assert four.run(loaded, str(folder)) == ["loaded"] * 4
    larger = small()
    larger.three = nn.Linear(2, 2)
    for said in four.run(loaded, str(folder), "gradwire", larger):
        assert "three.bias, three.weight is missing" in said
    (folder / "__2_0.distcp").unlink()
    assert "some cannot be read: FileNotFoundError" in four.run(loaded, str(folder))[2]
    shutil.rmtree(folder)
    four.run(saved, "topk(0.2)+ef | allgather", str(folder), 2)
    for said in four.run(loaded, str(folder)):
        assert "saved with 'topk(0.2)+ef | allgather'" in said
    assert four.run(loaded, str(folder), "gradwire", None, False) == ["loaded"] * 4
