"""Launches of compiled kernels, shown with a stand-in for one, as there is no device."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.compiler import BaseBackend
from triton.runtime import jit

from gradwire.kernels.cuda import launch as launches
from gradwire.kernels.cuda.launch import kind_of, launch

CALLS: list[tuple[str, Any, Any]] = []


class Compiled:
    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert len(grid) == 3, "what is compiled takes three"
        return lambda *given: CALLS.append(("compiled", grid, given))


class Kernel:
    """A stand-in for a kernel of (x, n, dtype, BLOCK), with the attributes of Triton's."""

    pre_run_hooks: tuple[Any, ...] = ()

    def __init__(
        self, result: Any = None, constant: tuple[bool, ...] = (False, False, True, True)
    ):
        names = ("x", "n", "dtype", "BLOCK")
        self.result = Compiled() if result is None else result
        self.params = [
            SimpleNamespace(name=name, is_constexpr=is_) for name, is_ in zip(names, constant)
        ]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*given: Any, **constants: Any) -> Any:
            CALLS.append(("triton", grid, (given, constants)))
            return self.result

        return run


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    current = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    CALLS.clear()
    yield current
    launches._known.clear()


def ways() -> list[str]:
    made = [way for way, _, _ in CALLS]
    CALLS.clear()
    return made


def test_the_second_launch_is_of_what_the_first_compiled() -> None:
    kernel, x = Kernel(), torch.zeros(4)
    for grid in ((3,), (3, 2), (5,)):
        launch(kernel, grid, x, 7, BLOCK=64, dtype="fp32", num_warps=8)
    assert CALLS[0] == ("triton", (3,), ((x, 7), {"BLOCK": 64, "dtype": "fp32", "num_warps": 8}))
    assert CALLS[1] == ("compiled", (3, 2, 1), (x, 7, "fp32", 64)), "in the signature's order"
    assert CALLS[2][:2] == ("compiled", (5, 1, 1))


def test_each_device_kind_and_constant_has_its_own(device: list[int]) -> None:
    kernel, x = Kernel(), torch.zeros(64)
    of: dict[str, Any] = {"dtype": "fp32", "BLOCK": 64}
    given: list[tuple[Any, Any, dict[str, Any]]] = [
        (x, 7, of), (x[1:], 7, of), (x.int(), 7, of), (x, 1, of), (x, 16, of), (x, 2**40, of),
        (x, 7.0, of), (x, True, of), (None, 7, of), (x, 7, {**of, "BLOCK": 32}),
        (x, 7, {**of, "num_warps": 4}),
    ]  # fmt: skip
    for expected in ("triton", "compiled"):
        for place, n, constants in given:
            launch(kernel, (1,), place, n, **constants)
        assert ways() == [expected] * len(given)
    device[0] = 1
    launch(kernel, (1,), x, 7, **of)
    launch(Kernel(), (1,), x, 7, **of)
    assert ways() == ["triton"] * 2


def test_whatever_is_not_as_expected_is_triton_s() -> None:
    x = torch.zeros(4)
    hooked, plain = Kernel(), SimpleNamespace(pre_run_hooks=[])
    hooked.pre_run_hooks = (print,)
    for kernel in (hooked, Kernel(result=plain), Kernel(constant=(True, False, False, True))):
        for _ in range(2):
            launch(kernel, (1,), x, 7, dtype="fp32", BLOCK=64)
    for _ in range(2):
        launch(Kernel(), (1,), x, 7, "fp32", BLOCK=64)
        launch(Kernel(), (1,), x, (7, 7), dtype="fp32", BLOCK=64)
    kernel = Kernel()
    for _ in range(2):
        launch(kernel, (1,), x, 7, BLOCK=64)  # the other constant has a default
    assert set(ways()) == {"triton"}
    del kernel.params  # as the interpreter's kernels
    launches._known.clear()
    for _ in range(2):
        launch(kernel, (1,), x, 7, BLOCK=64, dtype="fp32")
    assert ways() == ["triton"] * 2


def test_kinds_tell_apart_what_triton_does() -> None:
    x = torch.zeros(64)
    given: list[Any] = [
        x, x[1:], x[4:], x.int(), x.double(), x.bool(), None, True, False, 0.0, 1.0, 16.0,
        *(sign * n + more for n in (0, 16, 2**31, 2**32, 2**62) for more in (-1, 0, 1, 16)
          for sign in (1, -1)), 2**63 - 1, 2**63, 2**63 + 1, -(2**63),
    ]  # fmt: skip
    told: dict[Any, Any] = {}
    for one in given:
        for specialize in (True, False):
            for align in (True, False):
                theirs = jit.native_specialize_impl(BaseBackend, one, False, specialize, align)
                ours = (kind_of(one), specialize, align)
                assert told.setdefault(ours, theirs) == theirs, one
    assert kind_of("fp32") == kind_of((1, 2)) == launches._OTHER
