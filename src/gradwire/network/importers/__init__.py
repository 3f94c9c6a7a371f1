"""Readers of other programs' topologies and traffic, one format a file."""

from __future__ import annotations

from pathlib import Path

from gradwire.errors import NetworkError


def read(file: str | Path) -> str:
    """Returns a file's text. Raises NetworkError if it has none."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: bytes that are no UTF-8, NUL in names
        raise NetworkError(
            f"the input must be a text file that can be read; {file}: {error}. Correct the name."
        ) from None
