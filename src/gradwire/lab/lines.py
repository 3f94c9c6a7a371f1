"""Whole lines out of the pipes of many processes."""

import os
import sys
from collections.abc import Callable

LineHandler = Callable[[int, str, str], None]

_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20


def print_prefixed(rank: int, stream: str, line: str) -> None:
    """Print a rank's line on our stream of the same name, with the rank in front."""
    print(f"[{rank}] {line}", file=getattr(sys, stream), flush=True)


class LinePipe:
    """A pipe that one rank writes to; hands each whole line to a handler as it comes."""

    def __init__(self, rank: int, stream: str, handler: LineHandler) -> None:
        self.rank = rank
        self.stream = stream
        self._handler = handler
        self._reader, self.writer = os.pipe()
        self._pending = b""

    def fileno(self) -> int:
        """The end to read from, for a selector."""
        return self._reader

    def close_writer(self) -> None:
        """Drop our own writing end, so that the last rank's exit ends the pipe."""
        os.close(self.writer)

    def pump(self) -> bool:
        """Read once, which blocks when nothing is there; return False at the pipe's end."""
        chunk = os.read(self._reader, _READ_BYTES)
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if self._pending and (not chunk or len(self._pending) > _LONGEST_LINE_BYTES):
            lines, self._pending = [*lines, self._pending], b""
        for line in lines:
            text = line.removesuffix(b"\r").decode(errors="replace")
            self._handler(self.rank, self.stream, text)
        return bool(chunk)

    def close(self) -> None:
        """Close the reading end."""
        os.close(self._reader)
