"""Launches that are repeated: a kernel that is compiled is launched as it is.

An ordinary launch asks each time which of a kernel's versions its arguments take, and compares
every number of a module that the kernel names: it takes the host 50 to 100 microseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Known(NamedTuple):
    """What is known of a kernel. It is held, so that its id stays its own.

    plain: how many arguments come before the constants. constants: their names, in order. made:
    for each key what was compiled, and the constants' values.
    """

    kernel: Any
    plain: int
    constants: tuple[str, ...]
    made: dict[Any, tuple[Any, tuple[Any, ...]]]


_known: dict[int, _Known] = {}
_OTHER = "of a type that is not known here"


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
    """`kernel[grid](*given, **constants)`, with all constants of its signature by their names, and
    options such as num_warps. Triton's knobs and the numbers of modules are those of the first
    launch. The interpreter has no such kernels, and what is called in another way is launched as
    Triton does it."""
    known = _known.get(id(kernel)) or _look_at(kernel)
    kinds = tuple(map(kind_of, given))
    if len(given) != known.plain or _OTHER in kinds or kernel.pre_run_hooks:
        kernel[grid](*given, **constants)
        return
    named = tuple((name, type(x), x) for name, x in constants.items())  # 1 is no True
    key = (torch.cuda.current_device(), kinds, named)
    found = known.made.get(key)
    if found is not None:
        compiled, values = found
        compiled[(*grid, 1, 1)[:3]](*given, *values)
        return
    compiled = kernel[grid](*given, **constants)
    if hasattr(compiled, "__getitem__") and all(name in constants for name in known.constants):
        known.made[key] = compiled, tuple(constants[name] for name in known.constants)


def kind_of(x: Any) -> Any:
    """What Triton compiles another version for, or more than that. As it does, it tells apart
    multiples of 16, ones, and numbers of 32 and 64 bits with and without a sign; it also does so
    where a kernel asks not to be specialised."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if type(x) is int:
        return x == 1, x % 16 == 0, -(2**31) <= x < 2**31, x < 2**63
    return type(x) if x is None or type(x) in (float, bool) else _OTHER


def _look_at(kernel: Any) -> _Known:
    params = getattr(kernel, "params", None)
    plain, names = -1, tuple[str, ...]()
    if params is not None:
        constant = [bool(param.is_constexpr) for param in params]
        if constant == sorted(constant):  # constants come last
            plain = constant.count(False)
            names = tuple(param.name for param in params[plain:])
    return _known.setdefault(id(kernel), _Known(kernel, plain, names, {}))
