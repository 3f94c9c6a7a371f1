"""What ranks measure, by one clock; and how all decide by the same numbers.

What all measured goes to all; what is computed from it may differ in bits between machines, so
one rank works it out, and all hear of it.
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
from gradwire.training.session import Session

_FAILED = "!"


def now(device: torch.device) -> float:
    """Seconds, once all that a device was given to do is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def from_first(session: Session, make: Callable[[], str]) -> str:
    """What `make` returns on rank 0, on every rank. Collective, between two steps.

    Raises:
        PlanError: with rank 0's words, on all ranks, if `make` raised an error.
    """
    text, cause = "", None
    if session.rank == 0:
        try:
            text = make()
        except Exception as error:  # whatever it is, the others must not wait for us
            words = error if isinstance(error, GradwireError) else repr(error)
            text, cause = f"{_FAILED}{words}", error
    performer = session.performers[0]
    written = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    data = written.to(performer.device)
    length = int(of_ranks(performer, [len(data)])[0])
    room = data.new_empty(length)
    sent = Broadcast(data if session.rank == 0 else room, 0, session.rank)
    arrived = performer.perform(sent, "what rank 0 found")
    assert isinstance(arrived, Tensor)
    text = bytes(arrived.cpu().tolist()).decode()
    if text.startswith(_FAILED):
        raise PlanError(text.removeprefix(_FAILED)) from cause
    return text


def of_ranks(performer: Performer, numbers: Any) -> Tensor:
    """Every rank's numbers, a tensor or (nested) lists of one shape: (ranks, *shape), float64, in
    memory. Collective."""
    mine = torch.as_tensor(numbers, dtype=torch.float64)
    data = mine.to(performer.device).view(-1)
    arrived = performer.perform(AllGather(data), "what ranks measured")
    assert isinstance(arrived, Tensor)
    return arrived.cpu().view(-1, *mine.shape)
