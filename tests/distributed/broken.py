"""A job in which a rank dies, stalls or fails, and what each rank reports of it.

No clock decides: timeouts are so long that only a hang reaches them. Where the other ranks notice
a fault by their timeout alone, it is lowered once all ranks have come to the step in which the
fault strikes. A rank that has failed waits until all others have reported that they failed, too,
however late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.runtime import silent_ranks, torch_dist
from gradwire.runtime.process_groups import set_timeout
from gradwire.runtime.waits import Waits
from gradwire.testing import Fault, inject

WIDE = 60.0
"""Seconds. Only a hang takes this long, even with fifty processes on two cores."""

SHORT = timedelta(seconds=2)
"""The timeout for what never comes."""


class Story(NamedTuple):
    """Kind and text of what this rank's backward raised, and what the next one did."""

    kind: str
    text: str
    after: str


@dataclass(frozen=True)
class Broken:
    """A fault, the rank and the step in which it strikes, and the model and plan that are trained.

    waits: the others notice it by their timeout alone, as nobody closes a connection.
    """

    rank: int
    fault: Fault
    step: int
    plan: str
    ddp: bool = False
    lanes: int = 1
    wide: int = 20
    waits: bool = False

    def __call__(self) -> Story:
        with everybody_is_heard_but(self.rank):
            return until_it_breaks(self)


def until_it_breaks(job: Broken) -> Story:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(job.wide, 8), nn.Linear(8, job.wide))
    if job.ddp:
        model = DistributedDataParallel(model)
    handle = gradwire.attach(
        model, job.plan, timeout_seconds=WIDE, lanes=job.lanes, bucket_bytes=1
    )
    conductor = handle._session.conductor
    groups = [group for lane in conductor._lanes for group in groups_of(lane.performer)]
    inject(conductor, job.fault, rank=job.rank, lane=0)

    def step() -> None:
        model.zero_grad()
        model(torch.randn(2, job.wide)).square().mean().backward()

    for _ in range(job.step):
        step()
    story = Story("", "", "")
    try:
        with lowered_limits(groups) if job.waits else nullcontext():
            step()
            step()  # a rank that had finished before the fault struck fails here
    except Exception as error:
        tell_that_it_is_over()
        story = Story(type(error).__name__, str(error), "")
        try:
            step()
        except Exception as next_error:
            story = story._replace(after=f"{type(next_error).__name__}: {next_error}")
    handle.detach()
    return story


@contextmanager
def lowered_limits(groups: Iterable[dist.ProcessGroup]) -> Iterator[None]:
    """Lowers the timeout of all exchanges inside. All ranks come to it, and begin at once."""
    dist.barrier()
    for group in groups:
        set_timeout(SHORT.total_seconds(), group)  # affects collectives alone
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_dist, "Waits", ShortWaits)
        yield


class ShortWaits(Waits):
    """The lowered timeout for messages between pairs of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._deadline = monotonic() + SHORT.total_seconds()


def groups_of(performer: Any) -> list[dist.ProcessGroup]:
    return [performer.group, *(part.group for part in performer._parts.values())]


@contextmanager
def everybody_is_heard_but(lost: int) -> Iterator[None]:
    """Inside, ranks that ask who has failed wait for the reports of all ranks but this one."""
    asked = silent_ranks._missing

    def missing(store: Any, under: str, ranks: Any, patience_seconds: float) -> list[int]:
        if patience_seconds:
            asked(store, under, [r for r in ranks if r != lost], WIDE)
        return asked(store, under, ranks, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silent_ranks, "_missing", missing)
        patch.setattr(silent_ranks, "STORE_SECONDS", WIDE)
        yield


# -- a fault that is over when the others have given up ------------------------------------------


def tell_that_it_is_over() -> None:
    with suppress(RuntimeError):  # the store may be what is lost
        dist.distributed_c10d._get_default_store().set(f"tests/over/{dist.get_rank()}", "yes")


def wait_until_it_is_over() -> None:
    """Waits for all other ranks."""
    others = set(range(dist.get_world_size())) - {dist.get_rank()}
    store = dist.distributed_c10d._get_default_store()
    store.wait([f"tests/over/{r}" for r in others], timedelta(seconds=WIDE))


@dataclass(frozen=True)
class Stuck(Fault):
    """Stops before move `at` until all other ranks have given up."""

    at: int

    def before(self, number: int, move: Any) -> Any:
        if number == self.at:
            wait_until_it_is_over()
        return move
