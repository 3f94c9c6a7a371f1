"""Finds gradwire._native, chooses the instruction set, and checks tensors before their addresses
are passed.

The extension checks nothing; every check is here or in the face of the kernel, and nothing else
may call it.
"""

import contextlib
import importlib
import math
import os
import struct
import warnings
from collections.abc import Iterator
from typing import Protocol, cast

import torch

from gradwire.errors import KernelError
from gradwire.kernels.core_streams import StreamsCore

VARIABLE = "GRADWIRE_KERNELS"
SETS = ("plain", "avx2", "avx512")  # position = the number that the extension uses
TWIN = "twin"
INDEX_LIMIT = 2**31 - 1
STREAM_BYTES = 4 << 20  # larger targets are written around the cache
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class NativeJournal(Protocol):
    """gradwire._native.Journal: what one update kept."""

    def address(self) -> int: ...
    def elements(self) -> int: ...
    def fits(self, n: int, with_velocity: bool, /) -> bool: ...
    def put_back(self, u: int, v: int, /) -> None: ...


class Core(StreamsCore, Protocol):
    """The functions of gradwire._native: addresses and sizes, nothing checked."""

    def Journal(self) -> NativeJournal: ...
    def best_instruction_set(self) -> int: ...
    def fallbacks(self) -> int: ...
    def topk(
        self, set: int, type: int, x: int, n: int, k: int, index: int, value: int, hint: float, /
    ) -> tuple[float, bool]: ...
    def count(self, set: int, type: int, x: int, n: int, least: float, /) -> int: ...
    def reaching(
        self,
        set: int,
        type: int,
        x: int,
        n: int,
        least: float,
        room: int,
        index: int,
        value: int,
        /,
    ) -> tuple[int, bool]: ...
    def update_topk(
        self,
        set: int,
        type: int,
        gradient: int,
        u: int,
        v: int,
        n: int,
        mode: int,
        momentum: float,
        scale: float,
        mask: bool,
        k: int,
        index: int,
        value: int,
        velocities: int,
        hint: float,
        journal: int,
        /,
    ) -> tuple[float, bool]: ...
    def undo(
        self,
        set: int,
        type: int,
        gradient: int,
        u: int,
        v: int,
        n: int,
        mode: int,
        momentum: float,
        scale: float,
        /,
    ) -> None: ...
    def restore(
        self, u: int, v: int, index: int, value: int, velocities: int, k: int, /
    ) -> None: ...
    def add(self, v: int, index: int, value: int, k: int, factor: float, /) -> None: ...
    def first_violation(self, index: int, count: int, n: int, /) -> int: ...
    def encode_indices(
        self, code: int, n: int, k: int, index: int, section: int, bytes: int, /
    ) -> None: ...
    def decode_indices(
        self, set: int, code: int, n: int, k: int, section: int, bytes: int, index: int, /
    ) -> int: ...
    def accumulate(
        self,
        set: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int, int, int]],
        divisor: float,
        /,
    ) -> None: ...
    def accumulate_dense(
        self,
        set: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int]],
        divisor: float,
        stream: bool,
        /,
    ) -> None: ...
    def cast(
        self, set: int, from_: int, to: int, source: int, target: int, n: int, stream: bool, /
    ) -> bool: ...
    def add_cast(
        self, set: int, type: int, source: int, sum: int, n: int, factor: float, /
    ) -> None: ...
    def is_finite(self, set: int, type: int, x: int, n: int, /) -> bool: ...
    def encode(
        self,
        set: int,
        format: int,
        type: int,
        x: int,
        n: int,
        noise: tuple[int, int, int],
        given_scale: float,
        codes: int,
        scales: int,
        stream: bool,
        /,
    ) -> bool: ...
    def update_codes(
        self,
        set: int,
        format: int,
        type: int,
        gradient: int,
        u: int,
        v: int,
        n: int,
        recurrence: tuple[int, float, float],
        noise: tuple[int, int, int],
        codes: int,
        scales: int,
        hint: float,
        journal: int,
        /,
    ) -> bool: ...
    def accumulate_codes(
        self,
        set: int,
        format: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int]],
        divisor: float,
        stream: bool,
        /,
    ) -> None: ...
    def add_codes(
        self, set: int, format: int, v: int, n: int, codes: int, scales: int, factor: float, /
    ) -> None: ...
    def pack_signs(
        self,
        set: int,
        type: int,
        x: int,
        n: int,
        noise: tuple[int, int, int],
        throws: bool,
        bits: int,
        /,
    ) -> tuple[float, float, int, bool]: ...
    def accumulate_signs(
        self,
        set: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int, int]],
        divisor: float,
        stream: bool,
        /,
    ) -> None: ...
    def add_signs(
        self, set: int, v: int, n: int, bits: int, values: int, count: int, factor: float, /
    ) -> None: ...
    def largest(
        self, set: int, type: int, x: int, n: int, squares: bool, /
    ) -> tuple[float, float]: ...
    def strata(
        self, set: int, noise: tuple[int, int, int], n: int, k: int, out: int, /
    ) -> None: ...
    def noise(
        self, set: int, noise: tuple[int, int, int], first: int, n: int, target: int, /
    ) -> None: ...
    def stream_update(
        self, set: int, gradient: int, u: int, v: int, n: int, momentum: float, /
    ) -> None: ...
    def stream_read(self, set: int, x: int, n: int, /) -> int: ...


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
    """The extension and the number of its instruction set, or None where the twin has to run."""
    name = _choice.resolve()
    core = _choice.core
    if core is None or name == TWIN:
        return None
    if any(t is not None and t.device.type != "cpu" for t in tensors):
        return None
    return core, SETS.index(name)


def check_index_range(n: int) -> None:
    """KernelError when n elements cannot be indexed in 32 bits, signed."""
    if n > INDEX_LIMIT:
        raise KernelError(
            f"a parameter has at most 2^31-1 = {INDEX_LIMIT} elements, this one has {n}; "
            "split it or exclude it from compression"
        )


def check_float(name: str, tensor: torch.Tensor) -> None:
    """KernelError unless the tensor is 1-D and of a dtype that the kernels read."""
    if tensor.dtype not in CODES:
        raise KernelError(
            f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}; convert it first"
        )
    if tensor.dim() != 1:
        raise KernelError(
            f"{name} must have one dimension, not shape {tuple(tensor.shape)}; "
            "pass tensor.view(-1)"
        )
    check_index_range(tensor.numel())


def check_same_device(first: torch.Tensor, **others: torch.Tensor | None) -> None:
    """KernelError unless all tensors are where the first is."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != first.device:
            raise KernelError(
                f"all tensors of a kernel must be on one device, but {name} is on {tensor.device} "
                f"and the first on {first.device}; move it there"
            )


def check_buffer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: int) -> None:
    """KernelError unless the tensor can be written in place: dtype, shape (size,), contiguous."""
    if tensor.dtype != dtype:
        raise KernelError(f"{name} must be {dtype}, not {tensor.dtype}; allocate it so")
    if tuple(tensor.shape) != (size,):
        raise KernelError(
            f"{name} must have shape ({size},), not {tuple(tensor.shape)}; allocate it so"
        )
    check_contiguous(name, tensor)


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """KernelError unless the tensor is one run of memory."""
    if not tensor.is_contiguous():
        raise KernelError(
            f"{name} is written in place and must be contiguous, "
            f"but has stride {tensor.stride()}; pass a contiguous tensor"
        )


def pointer(tensor: torch.Tensor | None) -> int:
    """Address of the first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def finite_number(name: str, value: float) -> float:
    """The value as fp32 rounds it; KernelError unless that is finite."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
        if math.isfinite(rounded):
            return rounded
    except OverflowError:
        pass
    raise KernelError(f"{name} must be finite in float32, not {value}; pass another value")
