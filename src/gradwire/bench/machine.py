"""What benchmarks need of the machine: native kernels, and an allocator that keeps its pages."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gradwire.progress import to_stderr

if TYPE_CHECKING:
    from gradwire.kernels.core import Core

ELEMENTS = 25_500_000  # ResNet-50
MOST_ELEMENTS = 1 << 28  # several tensors of this size are drawn

# Without these, glibc returns large blocks to the system and torch pays for fresh pages each time.
# The last one is needed above 32 MiB, where glibc caps the first.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_MMAP_MAX_": "0",
}


def say(line: str) -> None:
    """Prints a line about the benchmark to standard error, if it is open."""
    to_stderr(line)


def native() -> tuple[Core, int]:
    """Returns the extension and the instruction set in use. Raises KernelError without them."""
    from gradwire.errors import KernelError
    from gradwire.kernels.native import core_in_use

    found = core_in_use()
    if found is None:
        raise KernelError(
            "the benchmark measures the native kernels, but they are not in use; install gradwire "
            "where there is a C++ compiler, and do not set GRADWIRE_KERNELS=twin"
        )
    return found


def set_allocator() -> None:
    """Starts the process again with the thresholds above, unless it has them."""
    if any(name not in os.environ for name in ALLOCATOR):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ALLOCATOR)
