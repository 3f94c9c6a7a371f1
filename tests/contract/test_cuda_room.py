"""Whole strategies on the room of CUDA tensors, in Triton's interpreter, have the results and the
states of the twins."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from several import Named, Several, drawn
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.kernels import use
from gradwire.layout.message import HEADER_BYTES
from interpreter import quicken
from suites import first

pytest.importorskip("triton")
quicken()
SHAPES = {"a": (700,), "b": (3, 5), "c": (4100,)}
WORLD = 2
TO_ALL = 'steps("compress@gpu, all_gather, decompress@gpu")'
TO_OWNERS = (
    'steps("compress@gpu, all_to_all, decompress@gpu, compress@gpu, all_gather, decompress@gpu")'
)


@pytest.fixture(autouse=True)
def _numpy_says_nothing() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def steps(
    text: str, room: str, dtype: torch.dtype = torch.float32
) -> tuple[list[list[Named]], list[dict[str, Named]]]:
    """Returns the results of four steps, of which the third is spoiled on one rank and the fourth
    skipped, and the states after them."""
    with use(room):
        run, results = Several(text, SHAPES, WORLD, dtype=dtype), []
        for step in range(4):
            gradients = drawn(SHAPES, WORLD, step)
            if step == 2:
                gradients[1]["c"][5] = torch.inf
            results.append(run.step(gradients, skipped=step == 3))
        return results, run.kept()


def equal(one: Named, other: Named) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(x.nan_to_num(7.0), other[name].nan_to_num(7.0)) for name, x in one.items()
    )


@pytest.mark.parametrize(
    "text",
    first([
        "topk(0.01) | allgather", "qsgd(4) | allgather", "powersgd(1)", "nonzero | zen",
        "terngrad(clip=1.5) | alltoall", "int8 | alltoall", "bf16 | allreduce",
        "none | allgather", "threshold(0.5) | allgather",
    ], 3),
)  # fmt: skip
def test_results_and_states_are_the_twins(text: str) -> None:
    (mine, states), (wanted, other) = (steps(text, room) for room in ("triton", "twin"))
    for step, (own, theirs) in enumerate(zip(mine, wanted)):
        for rank, (x, y) in enumerate(zip(own, theirs)):
            assert equal(x, y), f"step {step}, rank {rank}"
    for memory, known in zip(states, other):
        for name, state in memory.items():
            assert equal(state, known[name]), name


@pytest.mark.parametrize(
    "text",
    first([
        'topk(0.01, values="bf16")+ef | allgather', "lloyd(2)+adam(beta2=0.99) | allgather",
        "int8+ef | hierarchical", "threshold(1.5)+ef | allgather", "dgc(0.01) | alltoall",
        "topk(0.01)+ef | allgather", "dgc(0.01) | allgather", "int8+ef | allgather",
        "int8+ef | alltoall", f"dgc(0.01) | {TO_ALL}", f"int8+ef | {TO_OWNERS}",
    ], 3),
)  # fmt: skip
def test_an_undone_step_is_as_the_twins_to_rounding(text: str) -> None:
    """Rounding differs since a device keeps blocks aside only where gradients are large, and the
    twins keep all."""
    (mine, states), (wanted, other) = (steps(text, room) for room in ("triton", "twin"))
    for own, theirs in zip(mine[:2], wanted):
        assert all(equal(x, y) for x, y in zip(own, theirs))
    for memory, known in zip(states, other):
        for name, state in memory.items():
            for key, x in state.items():
                assert torch.allclose(x, known[name][key], atol=1e-5), (name, key)


@cache
def after_two_steps(text: str, room: str) -> Several:
    """A run to copy: a copy's third step ends as if the same ranks had gone on."""
    with use(room):
        run = Several(text, SHAPES, WORLD)
        for step in range(2):
            run.step(drawn(SHAPES, WORLD, step))
    return run


def taken_back(text: str, room: str, resumed: bool, kind: str) -> list[dict[str, Named]]:
    """Returns by how much states differ after a third step that is spoiled on one rank and has
    spikes on both. resumed: whether ranks that undo it took no earlier step. kind: of spikes."""
    run = deepcopy(after_two_steps(text, room))
    with use(room):
        if resumed:
            run = Several(text, SHAPES, WORLD, memories=run.memories)
            run.taken = 2
        before, gradients = run.kept(), drawn(SHAPES, WORLD, 2)
        for mine in gradients:
            if kind != "large":
                mine["c"][[7, 4098]], mine["a"][9] = 1e20, -1e20
            if kind == "largest":
                mine["c"][4000], mine["a"][3], mine["b"][1, 1] = 3e38, -3e38, 1.75e38
        gradients[1]["c"][5] = torch.inf
        run.step(gradients)
        return [
            {
                name: {key: (x - earlier[name][key]).abs() for key, x in state.items() if len(x)}
                for name, state in memory.items()
            }
            for memory, earlier in zip(run.kept(), before)
        ]


@pytest.mark.once
@pytest.mark.parametrize("kind", ["large", "larger", "largest"])
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    "text",
    first([
        "topk(0.01)+ef | allgather", "dgc(0.01, nesterov=True) | allgather",
        "int8+ef | allgather", "sign(scaled=True)+ef | allgather", "terngrad+ef | allgather",
        "int8+dgc(mask=False) | allgather", f"dgc(0.01) | {TO_ALL}", "int8+ef | alltoall",
        "dgc(0.01) | allgather", "fp8+ef | allgather", "qsgd(4)+ef | allgather",
        "lloyd(1)+ef | allgather", "topk(0.01)+ef | alltoall", f"int8+ef | {TO_OWNERS}",
    ], 8),
)  # fmt: skip
def test_spikes_in_a_spoiled_step_leave_what_they_leave_on_processors(
    text: str, resumed: bool, kind: str
) -> None:
    """Undoing a spoiled step with spikes loses no more than on processors. A step cannot be
    inverted where gradients are far larger than the residual."""
    mine, theirs = (taken_back(text, room, resumed, kind) for room in ("triton", "plain"))
    for rank, (own, others) in enumerate(zip(mine, theirs)):
        assert own.keys() == others.keys()
        for name, state in own.items():
            for key, x in state.items():
                lost, on_processors = float(x.max()), float(others[name][key].max())
                assert lost <= max(1e-5, on_processors), (rank, name, key)


def test_averages_that_feedbacks_want_exact_are_the_twins() -> None:
    """Averages of 16-bit gradients stay in fp32 until it is known that the step counts."""
    text = "lloyd(2)+adam(beta2=0.99) | alltoall"
    (mine, states), (wanted, other) = (
        steps(text, room, torch.bfloat16) for room in ("triton", "twin")
    )
    for own, theirs in zip(mine, wanted):
        assert all(equal(x, y) for x, y in zip(own, theirs))
    for memory, known in zip(states, other):
        for name, state in memory.items():
            for key, x in state.items():
                assert torch.allclose(x, known[name][key], atol=1e-5), (name, key)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("dgc(0.01) | allgather", 0),
        ("int8+ef | allgather", 0),
        ("int8+ef | alltoall", 0),
        ("int8+ef | alltoall", 1),
        (f"dgc(0.01) | {TO_ALL}", 0),
        (f"int8+ef | {TO_OWNERS}", 0),
        (f"int8+ef | {TO_OWNERS}", 1),
    ],
)
def test_damage_is_told_when_the_step_ends(text: str, move: int) -> None:
    """The device holds back what would be written; the host looks only when the step ends."""

    def damaged(messages: Tensor) -> Tensor:
        messages = messages.clone()
        messages.view(WORLD, -1)[1, HEADER_BYTES:] = 255
        return messages

    with use("triton"):
        run = Several(text, SHAPES, WORLD)
        run.step(drawn(SHAPES, WORLD, 0))
        told = r"step 1 cannot be read on this rank|rank 0 received a damaged payload in step 1"
        with pytest.raises(PayloadError, match=told):
            run.step(drawn(SHAPES, WORLD, 1), damage=(move, 0, damaged))
        (contexts,) = run.contexts
        assert all(x.isnan().all() for x in contexts[0].results)


def test_a_machine_that_is_not_well_crosses_and_says_so_when_the_step_ends() -> None:
    """The machine crosses with NaN, and what was encoded of it is taken back."""

    def damaged(messages: Tensor) -> Tensor:
        messages = messages.clone()
        messages.view(WORLD, -1)[1, :8] = 255
        return messages

    with use("triton"):
        run = Several("int8+ef | hierarchical", SHAPES, WORLD)
        run.step(drawn(SHAPES, WORLD, 0))
        before = run.kept()
        told = "rank 1's begins with .*; .*rank 0 received a damaged payload in step 1"
        with pytest.raises(PayloadError, match=told):
            run.step(drawn(SHAPES, WORLD, 1), damage=(0, 0, damaged))
        for name, state in run.kept()[0].items():
            assert torch.allclose(state["residual"], before[0][name]["residual"], atol=1e-5)


@pytest.mark.parametrize("text", ["dgc(0.01) | allgather", "topk(0.01)+ef | allgather"])
def test_states_are_as_before_a_header_that_is_none(text: str) -> None:
    """Nothing is written after an unreadable header, so every bucket takes back what it sent."""

    def damaged(messages: Tensor) -> Tensor:
        messages = messages.clone()
        messages[1, :8] = 255
        return messages

    with use("triton"):
        run = Several(text, SHAPES, WORLD, buckets=[["a"], ["b", "c"]])
        run.step(drawn(SHAPES, WORLD, 0))
        before = run.kept()
        with pytest.raises(PayloadError, match=r"a message must begin with gradwire's header"):
            run.step(drawn(SHAPES, WORLD, 1), damage=(0, 0, damaged))
        for name, state in run.kept()[0].items():
            for key, x in state.items():
                assert torch.allclose(x, before[0][name][key], atol=1e-5), (name, key)
        for contexts in run.contexts:
            assert all(x.isnan().all() for x in contexts[0].results)
