"""What a session asks of its own view and of its guard, which are made around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer


class View(Protocol):
    """Knows where this rank computes (`training.own_view`)."""

    def leave(self) -> None:
        """Put the shared weights into the module."""

    def send(self, names: Iterable[str]) -> None:
        """Put those back whose gradients are there, and are about to be sent."""

    def uncover(self) -> None:
        """Make what waits readable, also amid a backward."""

    def waiting(self, name: str, residual: Tensor) -> Tensor:
        """What waits of a parameter, whose memory `residual` is."""


class Watch(Protocol):
    """Who looks at what training loses (`training.guard`)."""

    def given(self, name: str, gradient: Tensor) -> None:
        """Look at a gradient of this rank."""

    def arrived(self, name: str, average: Tensor | None) -> None:
        """Look at an average; None: of a step that was skipped."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Look before an optimizer steps."""

    def pause(self) -> None:
        """Look no more until `look_now`."""

    def look_now(self, on_harm: Callable[[], None]) -> None:
        """Look at the steps that follow, and tell of harm."""
