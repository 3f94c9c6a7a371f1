"""Counts the bytes of sparse sums: given tensors, summed in lockstep by every scheme."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.runtime.lockstep import lockstep

SUMS = {
    "dense": "none | allreduce",
    "allgather": 'nonzero(index="int32") | allgather',
    "sparcml": 'nonzero(index="int32") | sparcml',
    "sparse_ps": 'nonzero(index="int32") | sparse_ps',
    "balanced_coo": 'nonzero(index="int32") | zen',
    "zen_paper": 'nonzero | zen(variant="paper")',
    "union": "nonzero | union",
    "zen": "nonzero | zen",
    "columns": "nonzero | columns",
}
"""For each scheme that has one, the strategy that does what the scheme's formula describes."""


def count(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Returns, for every scheme, the bytes of each move's busiest rank, added up: {scheme, n,
    bytes}.

    tensors: one per worker, dense, of one shape. `columns` is only for matrices; `sparcml` only
    for powers of two, where its formula holds. Takes more memory than twice the tensors.
    """
    n = len(tensors)
    left_out = {"sparcml"} if n & (n - 1) else set()
    left_out |= {"columns"} if tensors[0].dim() < 2 else set()
    points = []
    for scheme, strategy in SUMS.items():
        if scheme not in left_out:
            _, trace = lockstep(strategy, tensors)
            points.append({"scheme": scheme, "n": n, "bytes": trace.busiest_bytes})
    return points


def recorded(paths: Sequence[Path]) -> list[Tensor]:
    """Reads gradients from files: each has a tensor, or a list of them, one per worker; dense or
    sparse.

    Returns them dense, fp32. Raises UsageError.
    """
    tensors: list[Tensor] = []
    for path in paths:
        try:
            with catch_warnings():  # torch says, from 2.15 on, that it checks sparse tensors
                filterwarnings("ignore", "Validating sparse tensor")
                found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UsageError(
                f"recorded gradients are files that torch.save wrote; '{path}' cannot be read: "
                f"{str(error).splitlines()[0]}. Save tensors in it, one per worker."
            ) from None
        for x in found if isinstance(found, list | tuple) else [found]:
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_meta:
                raise UsageError(
                    f"a recorded gradient is a tensor of floats; '{path}' has {type(x).__name__}. "
                    "Save a parameter's .grad, or a list of them."
                )
            dense = x if x.layout == torch.strided else x.to_dense()
            tensors.append(dense.detach().float() + 0.0)  # -0 is zero, as for `measure`
            if not bool(tensors[-1].isfinite().all()):
                raise UsageError(
                    f"a recorded gradient is finite, in fp32; one in '{path}' is not: a step that "
                    "would be skipped. Record another."
                )
    return tensors
