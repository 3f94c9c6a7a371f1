"""The host's time to launch work on many small parameters on a GPU; it needs no GPU.

Launches do nothing here, but everything before them is done: faces check, tables are written,
compiled kernels are looked up. Tensors are in the host's memory, so copies of tables and Triton's
own launch, 8 microseconds each on an H200's host, come on top. A step is what one bucket takes to
be encoded, and the averages of two ranks' payloads to be written; or the step to be taken back
("undo"), or what was sent to be given back ("return"); of a kernel's call alone the kernel's name.

    python benchmarks/gpu/host_time.py [--profile "topk(0.01)+ef"] [--parameters 300]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import KernelInterface

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.kernels import cuda, formats, new_status, rooms
from gradwire.kernels.segments import UpdateCodes, UpdateTopk
from gradwire.kernels.values import SILENCE
from gradwire.runtime.codec import Codec
from gradwire.strategy import StepInfo

STRATEGIES = "topk(0.01)+ef", "dgc(0.01)", "int8+ef", "qsgd(4)+ef", "lloyd(2)+adam", "bf16"
UNDONE = "topk(0.01)+ef", "dgc(0.01)", "int8+ef"
PARAMETERS, ELEMENTS, WORLD, STEPS = 300, 2000, 2, 100


class Launches:
    """Replaces Triton's compiled kernels: counts launches and does nothing."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        self.count += 1
        return lambda *given, **constants: self


class Operations(TorchDispatchMode):
    """Counts torch's operations that make or write a tensor, each of which is a further launch or
    an allocation on a device. Views do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


class Found(NamedTuple):
    """A step: milliseconds of the fastest, launches, and torch's operations beside them."""

    milliseconds: float
    launches: float
    operations: float


@contextmanager
def nothing_launched() -> Iterator[Launches]:
    """Lets the CUDA room work on tensors in the host's memory, with kernels that do nothing."""
    launches = Launches()
    with (
        mock.patch.dict(rooms.ROOMS, {"cpu": cuda}),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(
            KernelInterface,
            "__getitem__",
            lambda self, grid: lambda *given, **constants: launches[grid](),
        ),
    ):
        yield launches


def steps_of(text: str, parameters: int, elements: int) -> dict[str, Callable[[], None]]:
    """Returns the parts of a bucket's step, in order."""
    strategy = Strategy.parse(f"{text} | allgather")
    bucket = Bucket(tuple(Parameter(f"p{i}", (elements,)) for i in range(parameters)))
    codec = Codec(strategy, bucket, 0, WORLD, {})
    gradients = [torch.randn(elements) for _ in range(parameters)]
    messages = torch.zeros((WORLD, codec.layout.bytes), dtype=torch.uint8)
    payloads = list(zip(*(codec.layout.views(message) for message in messages)))
    word, number = new_status(), iter(range(10**9))

    def encode() -> None:
        codec.begin(gradients, gradients, StepInfo(next(number), 1.0))
        if strategy.compressor.casts():
            codec.cast()
        else:
            codec.compress()

    def decode() -> None:
        codec.average(payloads, word, codec.known)
        for encoder in codec._at_work:
            encoder.release()

    return {"encode": encode, "decode": decode}


def undone_of(text: str, parameters: int, elements: int) -> dict[str, Callable[[], None]]:
    """Returns the parts of undoing a step, in order; they can be repeated, as nothing is
    launched."""
    strategy = Strategy.parse(f"{text} | allgather")
    bucket = Bucket(tuple(Parameter(f"p{i}", (elements,)) for i in range(parameters)))
    codec = Codec(strategy, bucket, 0, WORLD, {})
    gradients = [torch.randn(elements) for _ in range(parameters)]
    for step in range(2):  # the first step has no states to keep
        codec.begin(gradients, gradients, StepInfo(step, 1.0))
        codec.compress()
    return {"undo": codec._undo, "return": codec._give_back}


def calls_of(parameters: int, n: int) -> dict[str, Callable[[], Any]]:
    """Returns calls of the room alone, as main.py times them on a device."""
    status, k = new_status(), max(1, n // 100)

    def zeros() -> Tensor:
        return torch.zeros(n)

    selected, coded = list[UpdateTopk](), list[UpdateCodes]()
    for _ in range(parameters):
        places, values, velocities = torch.zeros(k, dtype=torch.int32), *torch.zeros((2, k))
        selected.append(
            UpdateTopk(zeros(), zeros(), zeros(), k, places, values, velocities, 0.9, hint=1.5)
        )
        codes = torch.zeros(formats.INT8.code_bytes(n), dtype=torch.uint8)
        scales = torch.zeros(formats.INT8.scales(n))
        coded.append(
            UpdateCodes(formats.INT8, zeros(), None, zeros(), codes, scales, SILENCE, None)
        )
    return {
        "update_topk": lambda: cuda.update_topk(selected, status),
        "update_codes": lambda: cuda.update_codes(coded, status),
    }


def measured(works: dict[str, Callable[[], Any]], launches: Launches) -> dict[str, Found]:
    """Measures each, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for step in range(STEPS + 5):
        for name, work in works.items():
            began = thread_time()
            work()
            if step >= 5:
                seconds[name].append(thread_time() - began)
    found = {}
    for name, work in works.items():
        before = launches.count
        with Operations() as operations:
            work()
        count = launches.count - before
        found[name] = Found(min(seconds[name]) * 1e3, count, operations.count)
    return found


def main() -> int:
    """Prints a table, or the profile of one strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", help="a strategy")
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with nothing_launched() as launches:
        if given.profile:
            for name, work in steps_of(given.profile, given.parameters, given.elements).items():
                measured({name: work}, launches)
                with cProfile.Profile() as profile:
                    for _ in range(STEPS):
                        work()
                pstats.Stats(profile).sort_stats("tottime").print_stats(30)
            return 0
        rows = {
            f"{text} {name}": found
            for text in STRATEGIES
            for name, found in measured(
                steps_of(text, given.parameters, given.elements), launches
            ).items()
        }
        rows |= {
            f"{text} {name}": found
            for text in UNDONE
            for name, found in measured(
                undone_of(text, given.parameters, given.elements), launches
            ).items()
        }
        rows |= measured(calls_of(given.parameters, given.elements), launches)
    print(f"{'':>24} {'ms':>7} {'launches':>9} {'torch':>6}")
    for name, found in rows.items():
        print(f"{name:>24} {found.milliseconds:>7.2f} {found.launches:>9} {found.operations:>6}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
