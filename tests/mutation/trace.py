"""Tells which lines of the C++ core a case runs, by a build that reports its blocks.

    python -m mutation.trace build/mutation/traced      # prints the path of the extension

Evidence is taken with GRADWIRE_TEST_NATIVE set to that path. A block begins where the compiler
calls `__sanitizer_cov_trace_pc` (trace.cpp) and goes on to the next such call; its lines are those
that the debug information has in between.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from mutation.build import Build

FLAGS = "-g1 -fsanitize-coverage=trace-pc"


class Trace:
    """The blocks of a traced extension that ran, from one `taken` to the next."""

    def __init__(self, extension: str) -> None:
        self._taken = ctypes.CDLL(extension).trace_taken
        self._taken.restype = ctypes.c_size_t
        self._told = ctypes.POINTER(ctypes.c_uint32)()

    def taken(self) -> set[int]:
        count = self._taken(ctypes.byref(self._told))
        return set(self._told[:count])


def lines_of_blocks(extension: Path) -> dict[int, set[tuple[str, int]]]:
    """The lines of each block, by files as they are named in the repository."""
    code = subprocess.check_output(
        ["objdump", "-d", "--no-show-raw-insn", str(extension)], text=True
    )
    starts, after_call = [], False
    for found in re.finditer(r"^ +([0-9a-f]+):\t(.*)$", code, re.MULTILINE):
        if after_call:
            starts.append(int(found[1], 16))
        after_call = "call" in found[2] and "__sanitizer_cov_trace_pc" in found[2]
    table = subprocess.check_output(
        ["objdump", "--dwarf=decodedline", "--wide", str(extension)], text=True
    )
    blocks: dict[int, set[tuple[str, int]]] = defaultdict(set)
    file = "."
    for row in table.splitlines():
        if row.endswith(":") and "/" in row:
            file = os.path.normpath(row.rstrip(":").partition("/csrc/")[2])
        elif file != "." and (found := re.match(r"\S+ +(\d+) +0x([0-9a-f]+)", row)):
            place = bisect.bisect_right(starts, int(found[2], 16)) - 1
            if place >= 0:
                blocks[starts[place]].add((f"csrc/{file}", int(found[1])))
    return blocks


if __name__ == "__main__":
    build = Build(Path(sys.argv[1]), FLAGS, Path(__file__).with_suffix(".cpp"))
    print(build.extension())
