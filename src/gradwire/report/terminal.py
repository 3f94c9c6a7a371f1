"""Text and numbers as a terminal or a page shows them."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns text without control characters, which might command a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def plain(number: float, digits: int = 3) -> str:
    """Returns a number in so many digits, or in more, if it is larger, but never as 1e+03."""
    shown = f"{number:.{digits}g}"
    return f"{number:,.0f}" if "e+" in shown else shown
