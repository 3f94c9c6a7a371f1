"""A parameter as rows, most of which may be zero or absent.

Rows that are taken of it lie in the host's memory, as streams do, wherever the gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import UsageError
from gradwire.local import Local

BLOCK = 256  # elements: the row of a parameter that has no rows of its own


class Rows:
    """A gradient and its result as (count, width) matrices. width 0: the parameter's own rows.

    Dimensions after the first are joined. If the elements do not fill the last row, zeros follow
    them, and both matrices are copies.
    """

    def __init__(self, local: Local, width: int = 0) -> None:
        self.local, n = local, local.gradient.numel()
        own = n // local.shape[0] if len(local.shape) > 1 and n else 0
        self.width = width or own or BLOCK
        self.count = -(-n // self.width)
        self._padded = self.count * self.width != n
        self.x = self._whole(local.gradient).view(self.count, self.width)
        self.result = local.result if not self._padded else torch.empty_like(self.x).view(-1)
        self._expected = torch.empty(0, dtype=torch.int32, device="cpu")

    def _whole(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        missing = self.count * self.width - x.numel()
        return torch.cat([x, x.new_zeros(missing)]) if missing else x

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which rows are sent."""
        return self.local.result.dtype

    def nonzero(self) -> Tensor:
        """Returns the ids of rows that are not all zero, (k,) int32, ascending."""
        ids = torch.empty(self.count, dtype=torch.int32, device=self.x.device)
        return ids[: kernels.nonzero_rows(self.x, ids)].cpu()

    def take(self, ids: Tensor) -> Tensor:
        """Returns these rows, (k, width)."""
        device = self.x.device
        out = torch.empty(ids.numel(), self.width, dtype=self.dtype, device=device)
        kernels.gather_stripes(self.x, ids.to(device), (0, self.width), out.view(-1))
        return out.cpu()

    def expect(self, ids: Tensor) -> None:
        """Sets the ids of the result's rows, (u,): those of `nonzero`, and more. All others are
        zero.

        Where the result is the gradient's own memory, the others are zero already, to the bit.
        """
        self._expected = ids
        if self.result.data_ptr() != self.x.data_ptr():
            self.result.zero_()

    def put(self, rows: Tensor, bounds: Sequence[int], at: Tensor | None = None) -> None:
        """Writes stripes, one after the other: columns bounds[0] to bounds[1] - 1 of rows, and so
        on.

        at: the indices of the expected rows to write, (k,) int32, ascending; None: all.
        """
        ids = self._expected if at is None else self._expected[at.long()]
        whole, flat = self.result.view(self.count, self.width), rows.reshape(-1)
        kernels.scatter_stripes(whole, ids.to(whole.device), bounds, flat.to(whole.device))

    def finish(self) -> None:
        """Completes the result, after the last `put`."""
        if self._padded:
            self.local.result.copy_(self.result[: self.local.result.numel()])


def table_of(local: Local) -> Rows | CooRows:
    """Returns a parameter's rows, by the layout of its gradient."""
    return CooRows(local) if kernels.is_rows(local.gradient) else Rows(local)


def check_layouts(names: Sequence[str], told: Sequence[Sequence[int]]) -> None:
    """Raises UsageError, on all ranks, if gradients differ in layout between ranks. told: by rank,
    for each table, 1 if its gradient is COO there, else 0.

    Optimizers step dense and sparse gradients differently: replicas would drift apart.
    """
    for name, layouts in zip(names, zip(*told)):
        sparse = [r for r, is_sparse in enumerate(layouts) if is_sparse]
        if 0 < len(sparse) < len(layouts):
            raise UsageError(
                f"the gradient of '{name}' must be sparse on all ranks or dense on all; it is "
                f"sparse on ranks {sparse} only, of {len(layouts)}. Create a table that also has "
                "a dense use with sparse=False."
            )


class CooRows:
    """`Rows` of a COO gradient (ids of rows, and rows). The result is COO, too: the union of all
    ranks' rows, each once, ascending. No tensor as large as the parameter is made.
    """

    def __init__(self, local: Local) -> None:
        self._result = local.result
        self.count, self.width = local.shape[0], math.prod(local.shape[1:])
        ids, rows = kernels.rows_of(local.gradient, self.dtype)
        self._ids, self._rows = ids.cpu(), rows.cpu()
        self._mean: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which rows are sent."""
        return self._result.dtype

    def nonzero(self) -> Tensor:
        """Returns the ids of the gradient's rows, (k,) int32, ascending."""
        return self._ids

    def take(self, ids: Tensor) -> Tensor:
        """Returns all rows of the gradient, (k, width)."""
        return self._rows

    def expect(self, ids: Tensor) -> None:
        """Sets the ids of the result's rows, (u,), ascending: those of `nonzero`, and more."""
        self._ids, self._mean = ids, None

    def put(self, rows: Tensor, bounds: Sequence[int], at: Tensor | None = None) -> None:
        """Writes stripes, one after the other: columns bounds[0] to bounds[1] - 1 of rows, then
        the next.

        at: the indices of the expected rows to write, (k,) int32, ascending; None: all.
        """
        if rows.shape == (self._ids.numel(), self.width):
            self._mean = rows  # all of them
            return
        if self._mean is None:
            self._mean = self._rows.new_empty(self._ids.numel(), self.width)
        assert at is not None, "some of the rows are some of the expected ones"
        kernels.scatter_stripes(self._mean, at, bounds, rows.reshape(-1))

    def finish(self) -> None:
        """Writes the result, after the last `put`."""
        assert self._mean is not None, "put comes before finish"
        device = self._result.device
        kernels.write_rows(self._result, self._ids.to(device), self._mean.to(device))
