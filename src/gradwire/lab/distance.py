"""How far hosts are from each other: delay, jitter and loss, as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradwire.errors import LabError

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(us|ms|s)\s*", re.IGNORECASE)
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)\s*")
_LONGEST_SECONDS, _LARGEST_LOSS = 1.0, 0.5


@dataclass(frozen=True)
class Distance:
    """What every frame meets on its way from one host to another, besides the links.

    seconds: how much later it arrives; jitter_seconds: by how much this varies, evenly, either
    way, while frames between two hosts stay in order. loss: the probability that it is lost.
    """

    seconds: float = 0.0
    jitter_seconds: float = 0.0
    loss: float = 0.0

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self != NEAR

    @staticmethod
    def of(delay: str = "0s", jitter: str = "0s", loss: str = "0%") -> Distance:
        """Read "40ms", "5ms" and "0.1%". Raises `LabError` for anything else, a delay of more
        than a second, a jitter above the delay, and a loss of more than a half."""
        found = Distance(_seconds("delay", delay), _seconds("jitter", jitter), _share(loss))
        if found.jitter_seconds > found.seconds:
            raise LabError(
                "a jitter must be at most the delay, or frames would arrive before they were "
                f"sent; got a jitter of {jitter} around {delay}. Choose a smaller one."
            )
        return found

    def __str__(self) -> str:
        """Return it as a phrase."""
        varies = f" ± {1e3 * self.jitter_seconds:g}" if self.jitter_seconds else ""
        lost = f", {100 * self.loss:g} % of frames lost" if self.loss else ""
        return f"{1e3 * self.seconds:g}{varies} ms one way{lost}"


NEAR = Distance()
"""No distance: all that a frame meets are links and queues."""


def _seconds(name: str, text: str) -> float:
    match = _DURATION.fullmatch(str(text))
    seconds = float(match[1]) * _UNITS[match[2].lower()] if match else -1.0
    if not 0.0 <= seconds <= _LONGEST_SECONDS:
        raise LabError(
            f"a {name} must be a number with us, ms or s, up to {_LONGEST_SECONDS:g}s; got "
            f"{text!r}. Write for example 40ms."
        )
    return seconds


def _share(text: str) -> float:
    match = _SHARE.fullmatch(str(text))
    share = float(match[1]) / (100.0 if match[2] else 1.0) if match else -1.0
    if not 0.0 <= share <= _LARGEST_LOSS:
        raise LabError(
            f"a loss must be a share of frames from 0 to {_LARGEST_LOSS:.0%}; got {text!r}. Write "
            "for example 0.1%."
        )
    return share
