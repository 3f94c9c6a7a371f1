"""A gradient that comes as rows and their ids (COO): nothing as large as the parameter is made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.local import Local


class CooRows:
    """What `Rows` is of a dense gradient: a (count, width) matrix of which few rows are there.

    The result is COO too: the rows of the union, each once, ascending.
    """

    def __init__(self, local: Local) -> None:
        self._result = local.result
        self.count, self.width = local.shape[0], math.prod(local.shape[1:])
        self._ids, self._rows = kernels.rows_of(local.gradient, self.dtype)
        self._mean = self._rows

    @property
    def dtype(self) -> torch.dtype:
        """Of what travels."""
        return self._result.dtype

    def nonzero(self) -> Tensor:
        """Which rows there are, (k,) int32, ascending."""
        return self._ids

    def take(self, ids: Tensor, bounds: Sequence[int]) -> Tensor:
        """Columns bounds[j] to bounds[j + 1] - 1 of all rows, (k, width) each, end to end."""
        size = ids.numel() * (bounds[-1] - bounds[0])
        out = torch.empty(size, dtype=self.dtype, device=self._rows.device)
        kernels.gather_stripes(self._rows, _all(self._rows), bounds, out)
        return out

    def expect(self, ids: Tensor) -> None:
        """The result's rows, (u,), ascending: those of `nonzero` and more."""
        self._ids = ids
        self._mean = self._rows.new_empty(ids.numel(), self.width)

    def put(self, bounds: Sequence[int], stripes: Tensor) -> None:
        """Averages into the result, laid out as `take` does."""
        kernels.scatter_stripes(self._mean, _all(self._mean), bounds, stripes.reshape(-1))

    def finish(self) -> None:
        """All is put."""
        kernels.write_rows(self._result, self._ids, self._mean)


def _all(rows: Tensor) -> Tensor:
    return torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
