"""All that gradwire does, with members of another package: what two ranks report.

`test_outside_members.py` installs the package first, and checks the report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import torch
import torch.distributed as dist
from gradwire_example.levels import Levels
from small import fingerprint, loss_of, small

import gradwire
from gradwire import Strategy, lockstep
from gradwire.errors import GradwireError, PayloadError
from gradwire.families import COLLECTIVES, COMPRESSORS, FEEDBACK
from gradwire.member import Member
from gradwire.moves import AllGather
from gradwire.planner.pricing import price
from gradwire.strategy import Collective, Context, Key
from gradwire.testing import check

STRATEGIES = (
    "levels(15)+ef | allgather", "levels(15)+fading | allgather", "levels(127) | alltoall",
    "counted | allgather", "counted | halves", "topk(0.1)+ef | halves",
    "levels(15)+fading | halves", "topk(0.1)+fading | gtopk", "counted | zen",
    "levels(31)+adam | allgather",
)  # fmt: skip


def parsed() -> list[str]:
    """The strategies as they print."""
    return [str(Strategy.parse(text)) for text in STRATEGIES]


def obey_the_laws() -> dict[str, list[str]]:
    """The laws that were tried, by member."""
    members: list[Member] = [
        COMPRESSORS["levels"](15), COMPRESSORS["counted"](), FEEDBACK["fading"](),
        COLLECTIVES["halves"](),
    ]  # fmt: skip
    return {str(member): check(member) for member in members}


def in_lockstep() -> dict[str, list[float]]:
    """Bytes that each of three ranks sent, by strategy; all results are equal, and near the
    mean."""
    xs = [torch.randn(2000, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    sent = {}
    for text in STRATEGIES[:6]:
        results, trace = lockstep(text, xs)
        assert all(torch.equal(results[0], other) for other in results)
        if "topk" not in text:
            off = (results[0] - torch.stack(xs).mean(0)).norm() / torch.stack(xs).mean(0).norm()
            assert off < 0.2, f"{text} is off by {off}"
        sent[text] = trace.bytes_sent
    return sent


def priced() -> dict[str, tuple[float, float]]:
    """Bytes that a rank sends as `price` predicts them, and as counted, by strategy."""
    found = {}
    xs = [torch.randn(2000, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for text in ("levels(15)+ef | allgather", "levels(15)+fading | halves"):
        steps = price(text, [2000], 3).moves
        found[text] = sum(move.sent for move in steps), lockstep(text, xs)[1].bytes_sent[0]
    return found


def trained(folder: Path) -> dict[str, bool]:
    """Whether ranks end alike, and a run that is saved and resumed ends with the same bits."""
    alike = {}
    for number, text in enumerate(STRATEGIES[:9]):
        whole = _run(text, range(4))
        place = folder / f"{number}-{dist.get_rank()}.pt"
        _run(text, range(2), save=place)
        resumed = _run(text, range(2, 4), load=place)
        everybodys: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybodys, (whole, resumed))
        alike[text] = len({mark for pair in everybodys for mark in pair}) == 1
    return alike


def _run(text: str, steps: range, save: Path | None = None, load: Path | None = None) -> str:
    model = small(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, text)
    if load is not None:
        states = torch.load(load, weights_only=True)
        model.load_state_dict(states["model"])
        handle.load_state_dict(states["handle"])
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    if save is not None:
        torch.save({"model": model.state_dict(), "handle": handle.state_dict()}, save)
    handle.detach()
    return fingerprint(model.parameters())


@dataclass(frozen=True)
class Breaking(Levels):
    """Divides by zero in the second step of a job."""

    __module__ = "__main__"  # as if the program itself defined it
    name: ClassVar[str] = "breaking"

    def encode(self, x: torch.Tensor, sections: Any, key: Key, status: torch.Tensor) -> None:
        super().encode(x, sections, key, status)
        assert 1 // (1 - key.step) > 0


def told_of_damage() -> str:
    """The error of a collective to which one length arrives damaged."""
    ctx = Mock(length=torch.tensor([64, ~64]), message=lambda: torch.zeros(64, dtype=torch.uint8))
    rounds = COLLECTIVES["halves"]().rounds(ctx)
    next(rounds)
    try:
        rounds.send(torch.tensor([[64, ~64], [1 << 20, ~64]]))
    except PayloadError as error:
        return str(error)
    return "nothing"


def told_of_an_error() -> tuple[str, list[str]]:
    """The type of the error that a member raises amid a job, and the notes on it."""
    gradwire.register(Breaking)
    model = small(0)
    handle = gradwire.attach(model, "breaking(15)+ef | halves")
    loss_of(model, 0).backward()
    model.zero_grad()
    try:
        loss_of(model, 1).backward()
    except ZeroDivisionError as error:
        return type(error).__name__, error.__notes__
    finally:
        handle.detach()  # a rank whose other lane waits for this one hears that it is gone
    return "nothing", []


@dataclass(frozen=True)
class Wrongly(Collective):
    """Does what no collective may do, alike on all ranks."""

    how: str
    name: ClassVar[str] = "wrongly"

    def rounds(self, ctx: Context) -> Any:
        message = ctx.message()
        if self.how == "no result":
            yield AllGather(message)
        else:
            yield 5 if self.how == "no move" else AllGather(message.view(2, -1))


def told_of_wrong_collectives() -> dict[str, str]:
    """The error of a job's step by a collective that breaks a rule, by how it does."""
    gradwire.register(Wrongly)
    told = {}
    for how in ("no result", "no move", "not flat"):
        model = small(0)
        handle = gradwire.attach(model, f"none | wrongly('{how}')")
        try:
            loss_of(model, 0).backward()
        except GradwireError as error:
            told[how] = str(error)
        finally:
            handle.detach()
    return told


def report(folder: Path) -> dict[str, Any]:
    """Collects all of the above. Collective, over two ranks."""
    alone: tuple[Callable[[], Any], ...] = (parsed, obey_the_laws, in_lockstep, priced)
    return {
        "strategies": list(STRATEGIES),
        **{part.__name__: part() for part in alone},
        "trained": trained(folder),
        "told": told_of_an_error(),
        "told_of_damage": told_of_damage(),
        "told_of_wrong": told_of_wrong_collectives(),
    }
