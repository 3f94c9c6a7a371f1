"""A parameter as rows, most of which may be zero."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.local import Local

BLOCK = 256  # elements: a row of what has none of its own


class Rows:
    """A gradient and its result as (count, width) matrices. width 0: the parameter's own rows.

    Dimensions after the first are joined. What has one dimension, or is cut in blocks of another
    width, gets zeros behind its end: then both are copies.
    """

    def __init__(self, local: Local, width: int = 0) -> None:
        self.local, n = local, local.gradient.numel()
        own = n // local.shape[0] if len(local.shape) > 1 and n else 0
        self.width = width or own or BLOCK
        self.count = -(-n // self.width)
        self._padded = self.count * self.width != n
        self.x = self._whole(local.gradient).view(self.count, self.width)
        self.result = local.result if not self._padded else torch.empty_like(self.x).view(-1)

    def _whole(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        missing = self.count * self.width - x.numel()
        return torch.cat([x, x.new_zeros(missing)]) if missing else x

    @property
    def dtype(self) -> torch.dtype:
        """Of what travels."""
        return self.local.result.dtype

    @property
    def item_bytes(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.count

    def nonzero(self) -> Tensor:
        """Which rows hold anything, (k,) int32, ascending."""
        return (self.x != 0).any(1).nonzero().flatten().int()

    def take(self, ids: Tensor, columns: slice) -> Tensor:
        """(k, columns), contiguous."""
        return self.x[:, columns].index_select(0, ids)

    def clear(self) -> None:
        self.result.zero_()

    def put(self, ids: Tensor, columns: slice, values: Tensor) -> None:
        """Averages into the result."""
        whole = self.result.view(self.count, self.width)
        rows = values.view(ids.numel(), columns.stop - columns.start)
        whole[:, columns].index_copy_(0, ids.long(), rows)

    def finish(self) -> None:
        """All is put."""
        if self._padded:
            self.local.result.copy_(self.result[: self.local.result.numel()])
