"""The host's work on a device for one bucket does not grow with its parameters: launches, and
torch's own operations, each of which is a launch or an allocation."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.runtime.contexts import make_context
from gradwire.strategy import StepInfo
from scripts import script

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def host_time() -> Iterator[ModuleType]:
    with script("gpu", "host_time") as program:
        yield program


def asked(
    program: ModuleType, text: str, parameters: int, of: str = "steps_of"
) -> dict[str, tuple[int, int]]:
    """The numbers of launches and of torch's operations in a step that is not the first."""
    found = {}
    with program.nothing_launched() as launches:
        for name, work in getattr(program, of)(text, parameters, 200).items():
            work()
            work()
            before = launches.count
            with program.Operations() as operations:
                work()
            found[name] = launches.count - before, operations.count
    return found


@pytest.mark.parametrize(
    ("text", "encode", "decode"),
    [
        ("topk(0.01)+ef", 4, 8), ("dgc(0.01)", 4, 8), ("int8+ef", 2, 4), ("qsgd(4)+ef", 2, 4),
        ("sign(scaled=True)+ef", 6, 4), ("bf16", 1, 2),
        ("terngrad(clip=2.5)", 5, 4), ("terngrad(clip=2.5)+ef", 9, 4),
    ],
)  # fmt: skip
def test_three_hundred_parameters_take_as_many_launches_as_three(
    host_time: ModuleType, text: str, encode: int, decode: int
) -> None:
    many = asked(host_time, text, 300)
    assert many == asked(host_time, text, 3)
    assert many["encode"][0] <= encode
    assert many["decode"][0] <= decode


@pytest.mark.parametrize("text", ["topk(0.01)+ef", "dgc(0.01)", 'topk(0.01, values="bf16")+ef'])
def test_taking_back_three_hundred_takes_as_many_as_three(
    host_time: ModuleType, text: str
) -> None:
    """Undoing asks the host for as many launches, and for nothing it would have to wait for."""
    many = asked(host_time, text, 300, "undone_of")
    assert many == asked(host_time, text, 3, "undone_of") == {"undo": (3, 0), "return": (1, 0)}


@pytest.mark.parametrize("text", ["topk(0.01)+ef", "dgc(0.01)", "int8+ef"])
def test_pieces_for_owners_take_no_more(host_time: ModuleType, text: str) -> None:
    found = set()
    with host_time.nothing_launched() as launches:
        for parameters in (3, 30):
            bucket = Bucket(tuple(Parameter(f"p{i}", (900,)) for i in range(parameters)))
            context = make_context(Strategy.parse(f"{text} | alltoall"), bucket, 1, 4, {})
            for step in range(3):
                given = [torch.ones(900) for _ in range(parameters)]
                context.begin(given, given, StepInfo(step))
                before = launches.count
                next(context.rounds())
            found.add(launches.count - before)
    (count,) = found
    assert count <= 12


def test_calls_of_kernels_take_fewer_than_ten(host_time: ModuleType) -> None:
    with host_time.nothing_launched() as launches:
        for work in host_time.calls_of(300, 2000).values():
            before = launches.count
            with host_time.Operations() as operations:
                work()
            assert 0 < launches.count - before < 10
            assert operations.count < 5
