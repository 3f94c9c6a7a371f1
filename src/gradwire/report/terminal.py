"""What may be sent to a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text that came from files, without what would command a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
