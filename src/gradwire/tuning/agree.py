"""All ranks decide by the same numbers.

What all measured goes to all; what is computed from it may differ in bits between machines, so
one rank works it out, and all hear of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.errors import GradwireError, PlanError
from gradwire.moves import AllGather, Broadcast
from gradwire.runtime.torch_dist import Performer
from gradwire.training.session import Session

_FAILED = "!"


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
    performer, device = session.performers[0], session.device
    data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(device)
    length = int(of_ranks(performer, device, [len(data)])[0])
    room = torch.empty(length, dtype=torch.uint8, device=device)
    sent = Broadcast(data if session.rank == 0 else room, 0, session.rank)
    arrived = performer.perform(sent, "what rank 0 found")
    assert isinstance(arrived, Tensor)
    text = bytes(arrived.cpu().tolist()).decode()
    if text.startswith(_FAILED):
        raise PlanError(text.removeprefix(_FAILED)) from cause
    return text


def of_ranks(
    performer: Performer, device: torch.device, numbers: Tensor | Sequence[float]
) -> Tensor:
    """Every rank's, which have one shape: (ranks, *shape), float64, in memory. Collective."""
    mine = torch.as_tensor(numbers, dtype=torch.float64)
    arrived = performer.perform(AllGather(mine.to(device).view(-1)), "what ranks measured")
    assert isinstance(arrived, Tensor)
    return arrived.cpu().view(-1, *mine.shape)
