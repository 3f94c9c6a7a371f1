"""The room of CUDA tensors in Triton's interpreter, compared with the twins bit for bit.

The interpreter computes with numpy, operation by operation: it checks the arithmetic and the
addresses, not that the kernels compile (test_cuda_compiles.py), nor what runs at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.bench.rooms import alike
from gradwire.kernels import new_status

pytest.importorskip("triton")

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def same_by_both(
    operations: Sequence[Callable[..., Any]], given: Callable[[Tensor], tuple[Sequence[Any], Any]]
) -> list[Any]:
    """Runs both operations on fresh arguments, checks that all they may write is equal, and
    returns their results.

    given: from a status, the arguments and the tensors to compare.
    """
    found, written = [], []
    for operation in operations:
        status = new_status()
        arguments, tensors = given(status)
        found.append(operation(*arguments))
        written.append([*tensors, status])
    for number, (mine, wanted) in enumerate(zip(*written)):
        assert alike(mine, wanted), f"tensor {number}: {mine} is not {wanted}"
    return found
