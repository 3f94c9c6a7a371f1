"""Numbers on a command line: refused where they are read, by their range."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """What argparse makes a number by."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # also of thousands of digits
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"it is a whole number, {least} to {most:,}; got {text!r}"
            )
        return number

    return read


def above_0(text: str) -> float:
    """A parser of numbers above zero, for an argument that need not be whole."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"it is a number above 0; got {text!r}")
    return number
