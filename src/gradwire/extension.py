"""Finds gradwire._native, without torch. It checks nothing: those who call it do."""

from __future__ import annotations

import functools
import importlib
from typing import Any

VARIABLE = "GRADWIRE_KERNELS"
TWIN = "twin"  # a value of it: run without the extension, with as good results, but slower
TRITON = "triton"  # the kernels of CUDA in Triton's interpreter, on processors: for tests


@functools.cache
def extension() -> Any:
    """The module; None where it was not built."""
    try:
        return importlib.import_module("gradwire._native")
    except ImportError:
        return None
