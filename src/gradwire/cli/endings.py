"""How commands that have processes or files of their own end when they are told to."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the block with the same cleanup as an error, and exit code 143."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
