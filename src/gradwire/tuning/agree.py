"""One rank works it out, all hear of it: what is computed in several places may differ in bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.errors import GradwireError, PlanError
from gradwire.moves import AllGather, Broadcast
from gradwire.training.session import Session

_FAILED = "!"


def from_first(session: Session, make: Callable[[], str]) -> str:
    """What `make` returns on rank 0, on every rank. Collective, between two steps.

    Raises:
        PlanError: with rank 0's words, on all ranks, if `make` raised one of gradwire's errors.
    """
    text = ""
    if session.rank == 0:
        try:
            text = make()
        except GradwireError as error:
            text = f"{_FAILED}{error}"
    text = _broadcast(session, text)
    if text.startswith(_FAILED):
        raise PlanError(text.removeprefix(_FAILED))
    return text


def _broadcast(session: Session, text: str) -> str:
    performer, device = session.performers[0], session.device
    data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(device)
    lengths = performer.perform(
        AllGather(torch.tensor([len(data)], device=device)), "what rank 0 found"
    )
    assert isinstance(lengths, Tensor)
    room = torch.empty(int(lengths.view(-1)[0]), dtype=torch.uint8, device=device)
    sent = Broadcast(data if session.rank == 0 else room, 0, session.rank)
    arrived = performer.perform(sent, "what rank 0 found")
    assert isinstance(arrived, Tensor)
    return bytes(arrived.cpu().tolist()).decode()
