"""Ranks that attach something else than the others, and damaged messages: errors name the rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from broken import WIDE
from ranks import Ranks, side_by_side
from small import attached, gradients, loss_of, small
from torch import Tensor, nn

import gradwire
from gradwire import Plan
from gradwire.errors import GradwireError, UsageError
from gradwire.testing import Corrupt, inject

TOPK = "topk(0.1)+ef | allgather"
LISTED = 'topk(0.1, index="int32")+ef | allgather'  # int32 indices, to be changed by hand


# -- attaching -------------------------------------------------------------------------------


def refusal(make: Callable[[], Any]) -> tuple[str, str]:
    """The type and text of the error with which attaching ends."""
    try:
        make().detach()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 5))


def differs(what: str) -> tuple[str, str]:
    """Rank 1 attaches something else than the others."""
    odd = dist.get_rank() == 1
    model: nn.Module = small()
    plan: Any = TOPK
    options: dict[str, Any] = {"timeout_seconds": WIDE}
    if odd and what == "strategy":
        plan = "topk(0.2)+ef | allgather"
    if odd and what == "plan":
        options["bucket_bytes"] = 400
    if odd and what == "lanes":
        options["lanes"] = 3
    if odd and what == "buckets":
        options["buckets"] = [["one.weight"], ["two.weight"]]
    if odd and what == "clip_norm":
        options["clip_norm"] = 1.0
    if odd and what == "seed":
        options["seed"] = 1
    if odd and what == "model":
        model = Other()
    if odd and what == "frozen":
        model.one.weight.requires_grad_(False)  # type: ignore[union-attr]
    if odd and what == "dtype":
        model.bfloat16()
    return refusal(lambda: gradwire.attach(model, plan, **options))


@pytest.mark.parametrize(
    "what",
    ["strategy", "plan", "lanes", "buckets", "model", "frozen", "dtype", "clip_norm", "seed"],
)
def test_ranks_that_differ_are_named_on_all_ranks(three: Ranks, what: str) -> None:
    for rank, (kind, text) in enumerate(three.run(differs, what)):
        assert kind == "PlanError"
        assert "rank 1" in text
        assert f"rank {rank} has" in text


def invalid(what: str) -> tuple[str, str]:
    """Rank 1 alone requests something impossible."""
    odd = dist.get_rank() == 1
    plan: Any = TOPK
    wrong: dict[str, Any] = {
        "text": "topk(7)+ef | allgather",
        "nonsense": "gibberish",
        "file": Path("no/such/plan.json"),
        "number": 42,
        "capitals": "Auto",
        "none": None,
    }
    if odd and what in wrong:
        plan = wrong[what]
    options: dict[str, Any] = {}
    if odd and what == "buckets":
        options["buckets"] = [["no.such.parameter"]]
    if odd and what == "bucket_bytes":
        options["bucket_bytes"] = "many"
    if odd and what == "Python's own":
        options["buckets"] = (1 / 0 for _ in "x")
    return refusal(lambda: gradwire.attach(small(), plan, timeout_seconds=WIDE, **options))


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("text", "StrategyError"),
        ("nonsense", "StrategyError"),
        ("file", "PlanError"),
        ("buckets", "PlanError"),
        ("number", "UsageError"),
        ("capitals", "UsageError"),
        ("none", "UsageError"),
        ("bucket_bytes", "PlanError"),
        ("Python's own", "ZeroDivisionError"),
    ],
)
def test_one_rank_asks_for_the_impossible(three: Ranks, what: str, kind: str) -> None:
    found = three.run(invalid, what)
    assert [f[0] for f in found] == ["PlanError", kind, "PlanError"]
    assert all("rank 1" in text for _, text in (found[0], found[2]))


def expanded() -> tuple[str, str]:
    """A gradient whose rows are one row in memory, set by hand."""
    model = nn.Linear(4, 3)
    with attached(model, TOPK) as handle:
        model.weight.grad = torch.ones(1, 4).expand(3, 4)
        return refusal(handle.synchronize)


def test_an_average_cannot_be_written_into_an_expanded_gradient(three: Ranks) -> None:
    for kind, text in three.run(expanded):
        assert (kind, "expanded, with strides (0, 1)" in text) == ("UsageError", True), text


def stays_away(what: str) -> str:
    """Rank 1 fails before it can tell the others, which learn of it by the timeout."""
    options: dict[str, Any] = {"timeout_seconds": 3.0}
    model: Any = small()
    if dist.get_rank() == 1:
        if what == "lanes":
            options["lanes"] = 0
        if what == "module":
            model = "model"
    kind, _ = refusal(lambda: gradwire.attach(model, TOPK, **options))
    return kind


def test_one_rank_cannot_even_begin(tmp_path: Path) -> None:
    jobs = [(3, partial(stays_away, what)) for what in ("lanes", "module")]
    for outcomes in side_by_side(tmp_path, jobs):
        found = [outcome.value or outcome.story for outcome in outcomes]
        assert found == ["PeerError", "UsageError", "PeerError"]


def cannot(what: str) -> tuple[str, str]:
    """Rank 1's own model cannot be attached."""
    model: nn.Module = small()
    if dist.get_rank() == 1:
        if what == "frozen":
            model.requires_grad_(False)
        if what == "complex":
            model.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        if what == "devices":
            model.weight = nn.Parameter(torch.zeros(2, device="meta"))
        if what == "meta":
            model.to("meta")
        if what == "lazy":
            model.last = nn.LazyLinear(3)
    return refusal(lambda: gradwire.attach(model, TOPK, timeout_seconds=5.0))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("frozen", "must have trainable parameters"),
        ("complex", "'weight' is torch.complex64"),
        ("devices", "must be on one device"),
        ("meta", "'conv.weight' is on the meta device"),
        ("lazy", "'last.weight' has none yet"),
    ],
)
def test_one_rank_s_model_cannot_be_attached(three: Ranks, what: str, words: str) -> None:
    found = three.run(cannot, what)
    assert [kind for kind, _ in found] == ["PlanError", "UsageError", "PlanError"]
    assert all(words in text for _, text in found)
    assert all("rank 1" in text for _, text in (found[0], found[2]))


def everywhere(directory: str) -> None:
    """The same mistake on all ranks gives the same clear error."""
    path = Path(directory) / f"plan-{dist.get_rank()}.json"
    with attached(small(), TOPK) as handle:
        handle.plan.save(path)
    with attached(small(), path), attached(small(1), str(path)):
        pass
    other = path.with_suffix(".plan")
    other.write_text(path.read_text())
    with attached(small(), str(other)):
        pass
    for plan in (path, str(path), Plan.load(path)):
        kind, text = refusal(lambda plan=plan: gradwire.attach(Other(), plan))  # type: ignore[misc]
        assert kind == "PlanError"
        assert "one.bias" in text  # only in the plan
        assert "only in the model: weight" in text
    kind, text = refusal(lambda: gradwire.attach(small(), Path(directory) / "none.json"))
    assert kind == "PlanError"
    assert "none.json" in text
    kind, text = refusal(lambda: gradwire.attach(small(), str(Path(directory) / "none.json")))
    assert kind == "PlanError"
    path.write_text("{")
    assert refusal(lambda: gradwire.attach(small(), path))[0] == "PlanError"


def test_plan_files(three: Ranks, tmp_path: Path) -> None:
    three.run(everywhere, str(tmp_path))


@pytest.mark.parametrize("plan", ["auto", TOPK])
def test_what_is_no_module(plan: str) -> None:
    with pytest.raises(UsageError, match=r"takes an nn\.Module; got dict"):
        gradwire.attach({}, plan)  # type: ignore[arg-type]


def test_without_init_process_group() -> None:
    assert not dist.is_initialized()
    with pytest.raises(UsageError, match="init_process_group"):
        gradwire.attach(nn.Linear(2, 2), TOPK)


# -- payloads --------------------------------------------------------------------------------


class _Header:
    """Changes one of the four numbers of a message's header. Can be pickled."""

    def __init__(self, place: int, value: int) -> None:
        self.place, self.value = place, value

    def __call__(self, message: Tensor) -> None:
        message.view(-1)[:32].view(torch.int64)[self.place] = self.value


class _Index:
    """Changes the first two indices of a message's first parameter."""

    def __init__(self, first: int, second: int) -> None:
        self.first, self.second = first, second

    def __call__(self, message: Tensor) -> None:
        message.view(-1)[32:40].view(torch.int32).copy_(torch.tensor([self.first, self.second]))


class _Noise:
    def __init__(self, begin: int) -> None:
        self.begin = begin

    def __call__(self, message: Tensor) -> None:
        generator = torch.Generator().manual_seed(1)
        flat = message.view(-1)[self.begin :]
        flat.copy_(torch.randint(0, 256, flat.shape, generator=generator, dtype=torch.uint8))


CORRUPTIONS = {
    "magic": (_Header(0, 0x1234), "header"),
    "flags": (_Header(1, 4), "header"),
    "digest": (_Header(2, 77), "another bucket"),
    "step": (_Header(3, 41), "step 41"),
    "negative": (_Index(-1, 3), "ascend"),
    "beyond": (_Index(0, 2**31 - 1), "ascend"),
    "one-beyond": (_Index(0, 160), "ascend"),
    "descending": (_Index(5, 4), "ascend"),
    "twice": (_Index(5, 5), "ascend"),
    "noise": (_Noise(0), "header"),
    "noise-after-header": (_Noise(32), "ascend"),
}


def corrupted(name: str, sent: bool) -> tuple[str, str, bool, bool]:
    """The error, whether the memory around gradients stayed as it was, and whether training works
    after a new attach."""
    torch.manual_seed(0)
    model = nn.Linear(20, 8, bias=False)
    guard = torch.full((3, 8, 20), 5.0)
    with attached(model, LISTED, timeout_seconds=WIDE) as handle:
        fault = Corrupt(2, CORRUPTIONS[name][0], sent=sent)
        inject(handle, fault, rank=1)
        kind, text = "", ""
        for step in range(3):
            guard.fill_(5.0)
            model.weight.grad = guard[1].zero_()
            torch.manual_seed(step + 10 * dist.get_rank())
            try:
                model(torch.randn(2, 20)).sum().backward()
            except GradwireError as error:
                kind, text = type(error).__name__, str(error)
                break
        assert step == 2
        around = bool((guard[0] == 5.0).all() and (guard[2] == 5.0).all())
    dist.barrier()
    with attached(model, TOPK) as handle:  # training goes on after a new attach
        model.weight.grad = None
        model(torch.randn(2, 20)).sum().backward()
        fine = bool(model.weight.grad.isfinite().all()) and handle.stats()["steps"] == 1
    return kind, text, around, fine


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_message_everywhere(three: Ranks, name: str) -> None:
    for kind, text, around, fine in three.run(corrupted, name, True):
        assert kind == "PayloadError"
        assert CORRUPTIONS[name][1] in text
        assert "1" in text  # the rank it came from
        assert around
        assert fine


def test_a_message_corrupted_on_arrival(three: Ranks) -> None:
    """Only the receiver sees it; the other ranks have finished the step and go on without harm."""
    found = three.run(corrupted, "digest", False)
    assert [f[0] for f in found] == ["", "PayloadError", ""]
    assert all(f[2] and f[3] for f in found)


def out_of_step() -> tuple[str, str]:
    """One rank has trained a step more, as if it had resumed from another checkpoint."""
    model = small()
    with attached(model, "topk(0.1)+ef | allgather", timeout_seconds=WIDE) as handle:
        loss_of(model).backward()
        if dist.get_rank() == 2:
            handle._session.step += 1
        model.zero_grad()
        try:
            loss_of(model).backward()
        except GradwireError as error:
            return type(error).__name__, str(error)
    return "", str(gradients(model))


def test_ranks_out_of_step(three: Ranks) -> None:
    found = three.run(out_of_step)
    assert [f[0] for f in found] == ["PayloadError"] * 3
    assert "rank 2 is at step 2, this one at 1" in found[0][1]
