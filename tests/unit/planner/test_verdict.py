"""The verdict, in the promised sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiles import few, profile

from gradwire import Strategy
from gradwire.planner.candidates import BF16, FP32
from gradwire.planner.choose import WORTH, choose
from gradwire.planner.explain import explain
from gradwire.planner.profile import Contention
from gradwire.planner.verdict import Verdict, compresses, faster, verdict
from gradwire.planner.whatif import on
from gradwire.topology import Cluster


def test_sentences() -> None:
    own = Verdict("compress", 3, 161, 0.1, "bf16 | allreduce", 0.21, 0.5)
    assert str(own) == "compress 3 of 161 tensors: 2.10× faster than bf16"
    alone = Verdict("compress", 3, 161, 0.1)
    assert str(alone) == "compress 3 of 161 tensors"
    calm = Verdict("dense", 0, 161, 0.1, "bf16 | allreduce", 0.1, "bf16 | allreduce", 0.01)
    assert str(calm) == "do not compress: the network is not your bottleneck"
    busy = replace(calm, unbeaten="none | allreduce", added=0.4)
    assert str(busy) == "do not compress: nothing that may be used beats tuned fp32"
    whole = replace(calm, unbeaten_seconds=0.14)
    assert str(whole) == "do not compress: this plan is 1.40× faster than tuned bf16"
    slower = replace(busy, unbeaten_seconds=0.08)
    assert str(slower) == "this plan does not compress: tuned fp32 is 1.25× faster"
    other = replace(busy, unbeaten=None)
    assert str(other) == "do not compress: nothing that may be used is faster"


@pytest.mark.parametrize("nothing", [0.0, 1e-323])
def test_steps_that_are_as_good_as_nothing_have_no_ratios(nothing: float) -> None:
    """JSON has no infinity."""
    own = Verdict("compress", 3, 161, nothing, "bf16 | allreduce", 0.21)
    assert own.speedup == 1.0
    other = Verdict("dense", 0, 161, nothing, unbeaten="bf16 | allreduce", unbeaten_seconds=0.21)
    assert "inf" not in str(other)
    choice = replace(choose(profile(parameters=few())), lower_bound=nothing)
    assert choice.gap == explain(choice, profile(parameters=few())).gap == 0.0


@pytest.mark.parametrize(
    ("ratio", "text"), [(2.1, "2.10× faster"), (1.05, "5 % faster"), (0.8, "25 % slower")]
)
def test_how_much_faster(ratio: float, text: str) -> None:
    assert faster(ratio) == text


@pytest.mark.parametrize(
    ("text", "does"),
    [("none | allreduce", False), ("bf16 | allreduce", False), ("none | columns", False),
     ("powersgd(4)", True), ("nonzero | allgather", True),
     ('none | hierarchical(outer="powersgd(4)")', True), ("none | alltoall", False),
     ("topk(0.01)+ef | allgather", True), ("signsgd | vote", True)],
)  # fmt: skip
def test_what_compresses(text: str, does: bool) -> None:
    assert compresses(Strategy.parse(text)) == does


def test_of_choices() -> None:
    own = profile(parameters=few(), backward_seconds=0.02)
    slow = verdict(choose(on(own, Cluster(4, cross_bits_per_second=1e7)), lanes=[1]))
    assert (slow.kind, slow.compressed, slow.tensors) == ("compress", 6, 7)
    assert slow.speedup > 2
    assert slow.against == "bf16 | allreduce"
    quick = on(
        profile(parameters=few(), start_seconds=1e-7), Cluster(4, cross_bits_per_second=1e13)
    )
    assert verdict(choose(quick, lanes=[1])).kind == "dense"


def test_a_baseline_that_may_not_be_used_decides_nothing() -> None:
    """bf16 would leave little, but neither the allowed strategies nor the budget has it."""
    own = profile(parameters=few(), bits_per_second=1e9)
    costs = {t: replace(c, error=0.0 if t == FP32 else 0.1) for t, c in own.strategies.items()}
    own = replace(own, strategies=costs)
    only, exact = choose(own, [FP32], lanes=[1]), choose(own, lanes=[1], error_budget=0.01)
    for found in (only, exact):
        assert found.baselines[BF16].added < WORTH < found.baselines[FP32].added
        assert list(found.usable) == [FP32]
        assert str(verdict(found)) == "do not compress: nothing that may be used beats tuned fp32"
    told = {(group.decided_by, group.why) for group in explain(only, own).groups}
    assert told == {("only", "no strategy that may be used compresses")}


def test_a_faster_way_to_send_all_is_told() -> None:
    """bf16 that is summed inside machines first compresses nothing, and beats tuned bf16."""
    own = profile(parameters=few(), backward_seconds=0.02, strategies=[FP32, BF16])
    wire = own.strategies[BF16].wire
    for factor, share in ((0.4, 0.0), (0.8, 0.03)):
        quick = replace(own.strategies[BF16], wire=replace(wire, curve=wire.curve.scaled(factor)))
        more = {**own.strategies, 'bf16 | hierarchical(outer="allreduce")': quick}
        found = choose(replace(own, strategies=more), lanes=[1])
        assert found.best.added > share
        said = verdict(found)
        assert (said.kind, said.compressed) == ("dense", 0)
        speedup = found.baselines[BF16].seconds / found.best.seconds
        assert speedup > 1.02
        assert str(said) == f"do not compress: this plan is {faster(speedup)} than tuned bf16"


def test_moves_that_slow_backward_are_a_bottleneck() -> None:
    """All of bf16's moves are beside backward, which takes a fifth longer for them."""
    own = profile(parameters=few(), bits_per_second=1e9, backward_seconds=0.2)
    own = replace(own, contention=Contention(1.0, 0.9))
    found = choose(own, lanes=[1, 2])
    bf16 = found.baselines[BF16].timeline
    assert bf16.exposed_seconds < 0.03 * bf16.iteration_seconds < bf16.added_seconds
    assert not found.is_enough
    assert found.best.seconds < 0.95 * found.baselines[BF16].seconds
    assert verdict(found).kind == "compress"
    slowed = explain(replace(found, best=found.baselines[BF16]), own)
    assert "longer than alone" in slowed.summary[1]
