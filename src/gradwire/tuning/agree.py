"""The clock that measurements use, and how all ranks decide by the same numbers.

Measurements go from all ranks to all; results computed from them may differ in bits between
machines, so one rank computes them and broadcasts them. The ranks are the session's circle, whose
steps wait for each other: with a sharded model, more ranks than those that average.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import GradwireError, PlanError
from gradwire.moves import AllGather, Broadcast
from gradwire.runtime.torch_dist import Performer

_FAILED = "!"


def now(device: torch.device) -> float:
    """Returns the time in seconds, once all work queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def from_first(circle: Performer, make: Callable[[], str]) -> str:
    """Returns on every rank what `make` returns on rank 0 of the circle. Collective, between
    steps.

    Raises:
        PlanError: with rank 0's words, on all ranks, if `make` raised an error.
    """
    text, cause = "", None
    if circle.rank == 0:
        try:
            text = make()
        except Exception as error:  # the other ranks wait for a text, whatever failed here
            words = error if isinstance(error, GradwireError) else repr(error)
            text, cause = f"{_FAILED}{words}", error
    written = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    data = written.to(circle.device)
    length = int(of_ranks(circle, [len(data)])[0])
    room = data.new_empty(length)
    sent = Broadcast(data if circle.rank == 0 else room, 0, circle.rank)
    arrived = circle.perform(sent, "what rank 0 found")
    assert isinstance(arrived, Tensor)
    text = bytes(arrived.cpu().tolist()).decode()
    if text.startswith(_FAILED):
        raise PlanError(text.removeprefix(_FAILED)) from cause
    return text


def of_ranks(circle: Performer, numbers: Any) -> Tensor:
    """Returns every rank's numbers: (ranks, *shape), float64, on the CPU. numbers: this rank's, a
    tensor or (nested) lists, of one shape on all ranks. Collective."""
    mine = torch.as_tensor(numbers, dtype=torch.float64)
    data = mine.to(circle.device).view(-1)
    arrived = circle.perform(AllGather(data), "what ranks measured")
    assert isinstance(arrived, Tensor)
    # A copy: the next move reuses the memory.
    return arrived.to("cpu", copy=True).view(-1, *mine.shape)
