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
        self._mean: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what travels."""
        return self._result.dtype

    def nonzero(self) -> Tensor:
        """Which rows there are, (k,) int32, ascending."""
        return self._ids

    def take(self, ids: Tensor) -> Tensor:
        """They, (k, width)."""
        return self._rows

    def expect(self, ids: Tensor) -> None:
        """The result's rows, (u,), ascending: those of `nonzero` and more."""
        self._ids, self._mean = ids, None

    def put(self, ids: Tensor, rows: Tensor, bounds: Sequence[int]) -> None:
        """Columns bounds[0] to bounds[1] - 1 of some of the expected rows."""
        if rows.shape == (self._ids.numel(), self.width):
            self._mean = rows  # all of them
            return
        if self._mean is None:
            self._mean = self._rows.new_empty(self._ids.numel(), self.width)
        at = torch.searchsorted(self._ids, ids, out_int32=True)
        kernels.scatter_stripes(self._mean, at, bounds, rows.reshape(-1))

    def finish(self) -> None:
        """All is put."""
        assert self._mean is not None, "put comes before finish"
        kernels.write_rows(self._result, self._ids, self._mean)
