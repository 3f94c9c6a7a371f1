"""offload: the same bits as without, wherever gradients lie; here the host plays the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError, StrategyError
from gradwire.planner.pricing import price
from gradwire.runtime import contexts, host_copies
from gradwire.runtime.offload import OffloadedContext
from gradwire.strategy import StepInfo

PAIRS = [
    ("none", "allreduce"),
    ("bf16+ef", "allgather"),
    ("int8+ef", "alltoall"),
    ("topk(0.1)+ef", "allgather"),
    ("topk(0.1, values='bf16')+ef", "zen"),
    ("dgc(0.1)", "gtopk"),
    ("threshold(0.5)+ef", "allgather"),
    ("topk(0.1)+server_momentum", "allgather"),
    ("lloyd(2)+adam", "alltoall"),
    ("topk(0.1)+ef", "hierarchical(per_node=2)"),
    ("none", "powersgd(2)"),
]
both = pytest.mark.parametrize(("left", "outer"), PAIRS)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every gradient count as outside of the host's memory."""
    monkeypatch.setattr(host_copies, "is_apart", lambda device: True)


def given(step: int, dtype: torch.dtype) -> list[Tensor]:
    dice = torch.Generator().manual_seed(step)
    return [torch.randn(12, 16, generator=dice).to(dtype) for _ in range(4)]


def offloaded(left: str, outer: str) -> str:
    return f"{left} | offload(outer={outer!r})"


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_gives_the_bits_of_its_outer(left: str, outer: str, dtype: torch.dtype) -> None:
    states: list[list[dict[str, Tensor]]] = [[{} for _ in range(4)] for _ in range(2)]
    for step in range(4):
        mine, theirs = (
            lockstep(text, given(step, dtype), step=step, state=state)
            for text, state in zip((offloaded(left, outer), f"{left} | {outer}"), states)
        )
        for x, y in zip(mine[0], theirs[0]):
            assert torch.equal(x, y)
        assert mine[1].bytes_sent == theirs[1].bytes_sent
    for own, other in zip(*states):
        assert own.keys() == other.keys()
        assert all(torch.equal(own[key], other[key]) for key in own)


class Alone:
    """A bucket of two parameters in a job of one rank, driven by hand."""

    def __init__(self, text: str) -> None:
        self.bucket = Bucket((Parameter("a", (4, 8)), Parameter("b", (8,))))
        self.context = contexts.make_context(Strategy.parse(text), self.bucket, 0, 1, {})
        self.results = [torch.full((n,), 7.0) for n in self.bucket.sizes]

    def step(self, number: int, skipped: bool = False, spoil: bool = False) -> None:
        own = [x.flatten()[:n] for x, n in zip(given(number, torch.float32), self.bucket.sizes)]
        if spoil:
            own[1][0] = float("inf")
        kept = [x.clone() for x in own]
        self.context.begin(own, self.results, StepInfo(number))
        assert torch.equal(self.context.given[0][0], own[0])
        rounds, arrived = self.context.rounds(), None
        while True:
            try:
                move = rounds.send(arrived)
            except StopIteration:
                break
            arrived = move.data.view(1, -1)
        self.context.end(skipped)
        assert all(torch.equal(x, y) for x, y in zip(own, kept)), "the device's gradients stay"
        assert self.context.given == ((), ()), "and nothing keeps them"


TEXTS = ["topk(0.2)+ef | offload", "none+server_momentum | offload", "bf16 | offload"]


@pytest.mark.parametrize("text", TEXTS)
def test_averages_come_up_also_of_steps_that_do_not_count(text: str) -> None:
    alone, plain = Alone(text), Alone(text.replace("offload", "allgather"))
    assert isinstance(alone.context, OffloadedContext)
    assert not isinstance(plain.context, OffloadedContext)
    for number, (skipped, spoil) in enumerate(
        [(False, False), (True, False), (False, True), (False, False)]
    ):
        for each in (alone, plain):
            each.step(number, skipped, spoil)
        for x, y in zip(alone.results, plain.results):
            assert torch.equal(x.nan_to_num(5.0), y.nan_to_num(5.0))
        assert alone.context.finite is not spoil


def test_what_is_remembered_lies_beside_the_kernels_that_update_it() -> None:
    alone = Alone("topk(0.2)+ef | offload")
    alone.step(0)
    waiting = alone.context.leftovers()
    assert set(waiting) == {"a", "b"}
    assert alone.context.device == torch.device("cpu")


def test_a_price_says_where_work_is_done_and_what_is_copied() -> None:
    size = [(64, 64)]
    own = price("topk(0.1)+ef | offload", size, 4)
    plain = price("topk(0.1)+ef | allgather", size, 4)
    assert own.moves == plain.moves
    assert [work.kind for work in own.work] == ["copy", "encode", "accumulate", "copy"]
    assert {work.device for work in own.work if work.kind != "copy"} == {"cpu"}
    assert {work.device for work in plain.work} == {"gpu"}
    assert own.encode[0].elements == own.decode[-1].elements == 4096


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topk(0.1)+ef | offload(outer='zenn')", r"offload's outer must be a collective, as text"),
        ("none | offload(outer='offload')", r"choose where work is done; got 'offload'"),
        ("none | offload(outer='steps(\"all_reduce\")')", r"itself choose where work is done"),
        ("none | hierarchical(outer='offload')", r"nor works in host memory; got 'offload'"),
        ("int8 | offload(outer='zen')", r"needs a compressor that promises 'entries'"),
        ("topk(0.1)+ef21 | offload(outer='hierarchical')", r"acts on the whole average"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_made_of(text: str, said: str) -> None:
    with pytest.raises(StrategyError, match=said):
        Strategy.parse(text)


@pytest.mark.parametrize("outer", ["hierarchical(per_node=2)", "zen", "gtopk", "alltoall"])
def test_all_work_of_a_price_is_on_the_host(outer: str) -> None:
    own = price(f"topk(0.1)+ef | offload(outer={outer!r})", [(64, 64), (10,)], 4)
    plain = price(f"topk(0.1)+ef | {outer}", [(64, 64), (10,)], 4)
    assert {work.device for work in own.work if work.kind != "copy"} == {"cpu"}
    assert [w._replace(device="gpu") for w in own.work if w.kind != "copy"] == list(plain.work)
    assert own.moves == plain.moves


@pytest.mark.parametrize("text", TEXTS)
def test_a_step_that_fails_leaves_no_gradient_of_this_rank_alone(text: str) -> None:
    alone = Alone(text)
    own = [torch.ones(n) for n in alone.bucket.sizes]
    alone.context.begin(own, own, StepInfo(0))
    rounds = alone.context.rounds()
    move = next(rounds)
    with pytest.raises(StopIteration):
        rounds.send((move.data ^ 0x55).view(1, -1))  # type: ignore[attr-defined]
    with pytest.raises(PayloadError):
        assert alone.context.finite
    alone.context.abandon()
    assert all(x.isnan().all() for x in own)
