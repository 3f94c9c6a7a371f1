"""torch's default device, which a program may change, is for its own tensors: gradwire's are where
the gradients are, or in the host's memory where the host reads them.

Here it is the meta device, which holds no data; `torch.set_default_device("cuda")` is usual.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import gradwire
from gradwire import kernels
from gradwire.kernels import formats
from gradwire.kernels.native import available_sets

STRATEGIES = (
    "dgc(0.1) | gtopk", "onebit+ef | allgather", "eb(0.001) | allgather", "none | powersgd(2)",
    "topk(0.1)+ef | zen", "topk(0.1)+ef | sparcml", "topk(0.1)+ef | oktopk", "nonzero | columns",
    "topk(0.1)+ef | sparse_auto", "nonzero | omnireduce", "int8+adam | allgather",
    "none+server_adam | allreduce",
)  # fmt: skip


@pytest.fixture
def _no_default() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def average(strategy: str) -> Tensor:
    dice, state = torch.Generator().manual_seed(0), [dict[str, Tensor]() for _ in range(3)]
    given = [torch.randn(48, 32, generator=dice, device="cpu") for _ in state]
    for step in range(2):
        means, _ = gradwire.lockstep(strategy, given, step=step, state=state)
    return means[0]


@pytest.mark.usefixtures("_no_default")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", sorted({available_sets()[0], available_sets()[-1]}))
def test_a_strategy_computes_the_same(strategy: str, name: str) -> None:
    with kernels.use(name):
        expected = average(strategy)
        torch.set_default_device("meta")
        found = average(strategy)
    assert found.is_cpu
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("_no_default")
@pytest.mark.parametrize("name", available_sets())
def test_sums_of_rows_are_where_the_rows_are(name: str) -> None:
    """They were made on the default device: the extension then wrote to an address on that."""
    ids, rows = torch.tensor([1, 2], dtype=torch.int32), torch.ones(2, 3)
    torch.set_default_device("meta")
    with kernels.use(name):
        union, sums = kernels.sum_rows([ids, ids], [rows, rows], 1.0, torch.float32)
        all_ids, single, at = kernels.single_ids([ids])
    assert (union.tolist(), sums.tolist()) == ([1, 2], [[2.0] * 3] * 2)
    assert (all_ids.tolist(), single.tolist(), at.tolist()) == ([1, 2], [True, True], [0, 1])


@pytest.mark.usefixtures("_no_default")
def test_the_largest_scale_of_a_format() -> None:
    fresh = formats.Format(0, 256, 127.0)  # none has computed it yet
    torch.set_default_device("meta")
    assert fresh.most_scale == formats.INT8.most_scale
