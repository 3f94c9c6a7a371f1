"""Makes text safe to print on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns text without control characters, which might command a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
