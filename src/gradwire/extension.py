"""Finds gradwire._native, without importing torch. Callers check what they get."""

from __future__ import annotations

import functools
import importlib
from typing import Any

VARIABLE = "GRADWIRE_KERNELS"
TWIN = "twin"  # its value to run without the extension: the results are as good, but slower
TRITON = "triton"  # its value to run CUDA's kernels in Triton's interpreter on CPUs, for tests


@functools.cache
def extension() -> Any:
    """Returns the module; None if it was not built."""
    try:
        return importlib.import_module("gradwire._native")
    except ImportError:
        return None
