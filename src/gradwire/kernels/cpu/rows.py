"""Rows and stripes by the extension."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer


def nonzero_rows(x: Tensor, ids_out: Tensor) -> int:
    rows, columns = x.shape
    row_bytes = columns * x.element_size()
    return chosen.core.nonzero_rows(pointer(x), rows, row_bytes, pointer(ids_out))


def _in_bytes(x: Tensor, ids: Tensor, bounds: Sequence[int]) -> tuple[int, int, int, list[int]]:
    """The addresses and sizes of rows."""
    size = x.element_size()
    return pointer(ids), ids.numel(), x.shape[1] * size, [size * b for b in bounds]


def gather_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], out: Tensor) -> None:
    ids = ids.contiguous()
    chosen.core.gather_stripes(pointer(x), *_in_bytes(x, ids, bounds), pointer(out))


def scatter_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], stripes: Tensor) -> None:
    ids = ids.contiguous()
    chosen.core.scatter_stripes(pointer(x), *_in_bytes(x, ids, bounds), pointer(stripes))
