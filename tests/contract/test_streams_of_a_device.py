"""Lists of a device's gradients travel from the host's memory; here the host plays the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import instances
import pytest
import torch
from instances import strategies
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.collectives import GTopK
from gradwire.feedback import EF21
from gradwire.runtime import host_copies
from gradwire.runtime.contexts import sends_from_host
from gradwire.runtime.host_copies import HostCopies

BY_LISTS = [s for s in strategies() if "entries" in s.collective.needs]
State = dict[str, Tensor]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes gradients count as outside of the host's memory; lists the bytes of copies down."""
    copied = list[int]()
    down = HostCopies.down

    def counted(self: HostCopies, x: Tensor) -> Tensor:
        copied.append(x.nbytes)
        return down(self, x).clone()  # so that nothing is shared by chance

    monkeypatch.setattr(HostCopies, "down", counted)
    monkeypatch.setattr(host_copies, "is_apart", lambda device: True)
    return copied


def given(step: int, world: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(step)
    return [torch.randn(40, 16, generator=dice) for _ in range(world)]


def run(strategy: Strategy, states: Sequence[State], steps: Sequence[int]) -> list[Tensor]:
    """The results of all steps; in the last, one rank's gradient is spoiled."""
    results = list[Tensor]()
    for step in steps:
        own = given(step, len(states))
        if step == steps[-1]:
            own[1][3, 3] = torch.inf
        results += lockstep(strategy, own, step=step, state=list(states))[0]
    return results


@pytest.mark.once
@pytest.mark.parametrize("strategy", BY_LISTS, ids=instances.ids)
def test_the_same_bits_arrive_with_one_copy_down(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    here: list[State] = [{} for _ in range(3)]
    there: list[State] = [{} for _ in range(3)]
    wanted = run(strategy, here, range(4))
    copied: list[int] = request.getfixturevalue("apart")
    found = run(strategy, there, range(4))
    assert all(torch.equal(x.nan_to_num(5.0), y.nan_to_num(5.0)) for x, y in zip(found, wanted))
    for own, other in zip(here, there):
        assert own.keys() == other.keys()
        assert all(torch.equal(own[key], other[key]) for key in own)
    by_rows = strategy.collective.name == "omnireduce"  # blocks of elements, which it looks for
    assert by_rows or len(copied) >= 3 * 4, "every rank's message, in every step"
    ask: Callable[[int], bool] = (lambda n: n == copied[0]) if fixed(strategy) else bool
    if strategy.collective == GTopK():  # residuals at the agreed places come down, too
        remembers = strategy.feedback is not None and strategy.feedback.makes_good
        keeps_it = remembers and not isinstance(strategy.feedback, EF21)
        assert len([n for n in copied if n != copied[0]]) == (3 * 3 if keeps_it else 0)
        copied[:] = [n for n in copied if n == copied[0]]
    assert all(map(ask, copied))


def fixed(strategy: Strategy) -> bool:
    """Whether all messages have one size."""
    return strategy.compressor.claims(640).fixed


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("topk(0.1)+ef | zen", True), ("dgc(0.1) | gtopk", True), ("none | columns", True),
        ("topk(0.1)+ef | hierarchical(outer='zen')", True), ("none | offload", True),
        ("topk(0.1)+ef | allgather", False), ("none | allreduce", False),
    ],
)  # fmt: skip
def test_who_sends_from_the_host(text: str, does: bool) -> None:
    assert sends_from_host(Strategy.parse(text)) is does
