"""torch's default dtype, which a program may change, changes nothing of ours.

`torch.set_default_dtype(torch.bfloat16)` is usual in training with 16-bit weights.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch
from source import FILES, tree_of
from torch import Tensor

import gradwire
from gradwire.kernels import instruction_set, use

FACTORIES = {"empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}
COMMANDS = {"bench", "cli", "demo", "lab"}
"""Parts that run as commands, in processes of their own, where nobody changes the default."""
STRATEGIES = (
    "topk(0.1)+ef | allgather", 'dgc(0.1, values="fp16") | gtopk', "eb(0.001) | allgather",
    "lloyd(2)+adam | allgather", "lloyd(2)+muon | alltoall", "qsgd(4) | alltoall",
    "onebit+shared_momentum | alltoall", "none+server_adam | allreduce", "none | powersgd(2)",
    "nonzero | zen", "topk(0.1)+ef | oktopk", "sign | vote",
)  # fmt: skip


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


def averages(strategy: str, steps: int = 3) -> list[Tensor]:
    dice, state = torch.Generator().manual_seed(0), [dict[str, Tensor]() for _ in range(3)]
    found = []
    for step in range(steps):
        given = [torch.randn(48, 32, generator=dice, dtype=torch.float32) for _ in state]
        means, _ = gradwire.lockstep(strategy, given, step=step, state=state)
        found.append(means[0])
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("room", ["twin", None])
def test_a_strategy_computes_the_same(
    strategy: str, room: str | None, default: torch.dtype
) -> None:
    with use(room or instruction_set()):
        expected = averages(strategy)
        torch.set_default_dtype(default)
        found = averages(strategy)
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_feedbacks_count_more_steps_than_16_bits_hold(default: torch.dtype) -> None:
    """bfloat16 has no number between 256 and 258."""
    torch.set_default_dtype(default)
    state, ones = [dict[str, Tensor]()], torch.ones(2, dtype=torch.float32)
    for step in range(300):
        gradwire.lockstep("lloyd(2)+adam | allgather", [ones], step=step, state=state)
    assert float(state[0]["steps"]) == 300


@pytest.mark.parametrize("name", ["Muon", "OneBitAdam"])
def test_optimizers_count_more_steps_than_16_bits_hold(name: str, default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = (
        gradwire.optim.Muon([weight])
        if name == "Muon"
        else gradwire.optim.OneBitAdam([weight], freeze_step=10, momentum_kept=True)
    )
    for _ in range(300):
        weight.grad = torch.ones(2)
        optimizer.step()
    assert float(optimizer.state[weight]["step"]) == 300


def test_every_tensor_that_is_made_names_its_dtype() -> None:
    calls = [
        f"{module}:{node.lineno} torch.{node.func.attr}"
        for module, path in FILES.items()
        if module.split(".")[1:2] not in ([part] for part in COMMANDS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and "dtype" not in {argument.arg for argument in node.keywords}
    ]
    assert calls == [], "pass dtype=…: torch's default is the program's to change"
