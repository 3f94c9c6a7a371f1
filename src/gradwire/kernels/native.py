"""Finds gradwire._native and chooses the instruction set.

The extension checks nothing: `tensors` and the face of each kernel do, and nothing else may call
it.
"""

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from typing import cast

import torch

from gradwire.errors import KernelError
from gradwire.kernels.core import Core

VARIABLE = "GRADWIRE_KERNELS"
SETS = ("plain", "avx2", "avx512")  # position = the number that the extension uses
TWIN = "twin"


class _Choice:
    """What runs: resolved at the first use, changed by `use`."""

    def __init__(self) -> None:
        self.core: Core | None = None
        self.name: str | None = None

    def resolve(self) -> str:
        if self.name is None:
            self.core = _load()
            wanted = os.environ.get(VARIABLE)
            if wanted is None:
                best = None if self.core is None else self.core.best_instruction_set()
                self.name = TWIN if best is None else SETS[best]
                if best is None:
                    _warn_once()
            else:
                self.name = _checked(wanted, self.core, VARIABLE)
        return self.name


_choice = _Choice()


def _load() -> Core | None:
    try:
        return cast(Core, importlib.import_module("gradwire._native"))
    except ImportError:
        return None


def _warn_once() -> None:
    warnings.warn(
        "gradwire's native kernels are not installed, so their torch twins run: the same results, "
        "20 to 100 times slower on CPU tensors; reinstall gradwire where there is a "
        f"C++ compiler, or set {VARIABLE}={TWIN} to accept this",
        RuntimeWarning,
        stacklevel=4,
    )


def _checked(name: str, core: Core | None, source: str) -> str:
    if name != TWIN and name not in SETS:
        names = ", ".join((*SETS, TWIN))
        raise KernelError(f"{source} must be one of {names}, not {name!r}; correct or remove it")
    available = available_sets(core)
    if name not in available:
        raise KernelError(
            f"{source} asks for {name!r}, which this installation and processor do not have; "
            f"choose one of {', '.join(available)}"
        )
    return name


def available_sets(core: Core | None = None) -> list[str]:
    """The names that `use` accepts here, slowest first."""
    core = core or _choice.core or _load()
    return [TWIN] if core is None else [TWIN, *SETS[: core.best_instruction_set() + 1]]


def instruction_set() -> str:
    """What CPU tensors run on: "avx512", "avx2", "plain", or "twin" (torch)."""
    return _choice.resolve()


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Runs the kernels on one instruction set, in the whole process: for tests and benchmarks.

    Raises KernelError when this machine does not have it.
    """
    if _choice.core is None:
        _choice.core = _load()
    before = _choice.name
    _choice.name = _checked(name, _choice.core, "use()")
    try:
        yield
    finally:
        _choice.name = before


def core_for(*tensors: torch.Tensor | None) -> tuple[Core, int] | None:
    """The extension and the number of its instruction set, or None where the twin has to run.

    KernelError for tensors of the meta device, which hold nothing.
    """
    name = _choice.name or _choice.resolve()
    for tensor in tensors:
        if tensor is not None and not tensor.is_cpu:
            _refuse_meta(tensor)
            return None
    core = _choice.core
    if core is None or name == TWIN:
        return None
    return core, SETS.index(name)


def _refuse_meta(tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise KernelError(
            f"a kernel works on numbers, but a tensor of shape {tuple(tensor.shape)} is on the "
            "meta device, which has none; move it to a device"
        )
