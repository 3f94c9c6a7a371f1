"""The verdict, in the promised sentences."""

from __future__ import annotations

import pytest
from profiles import few, profile

from gradwire import Strategy
from gradwire.planner.choose import choose
from gradwire.planner.verdict import Verdict, compresses, faster, verdict
from gradwire.planner.whatif import on
from gradwire.topology import Cluster


def test_sentences() -> None:
    own = Verdict("compress", 3, 161, 0.1, "bf16 | allreduce", 0.21, 0.5)
    assert str(own) == "compress 3 of 161 tensors: 2.10× faster than bf16"
    alone = Verdict("compress", 3, 161, 0.1)
    assert str(alone) == "compress 3 of 161 tensors"
    calm = Verdict("dense", 0, 161, 0.1, "bf16 | allreduce", 0.1, 0.01)
    assert str(calm) == "do not compress: the network is not your bottleneck"
    busy = Verdict("dense", 0, 161, 0.1, "none | allreduce", 0.1, 0.4)
    assert str(busy) == "do not compress: nothing here beats tuned fp32"


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
