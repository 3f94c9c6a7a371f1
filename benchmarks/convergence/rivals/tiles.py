"""Matrices in tiles of at most 64 × 64, of which the largest elements are chosen.

Source: the chunks of Peng et al. 2024, "DeMo: Decoupled momentum optimization", which SparseLoCo
also uses: a side is the largest divisor that is at most 64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SIDE = 64


def side(length: int) -> int:
    """The side of the tiles that a dimension of that length is cut into."""
    return max(n for n in range(1, SIDE + 1) if length % n == 0)


def split(x: Tensor) -> Tensor:
    """(workers, rows, columns) -> (workers, tiles, height, width); a vector is one row."""
    workers, rows, columns = _matrices(x.shape)
    height, width = side(rows), side(columns)
    tiles = x.reshape(workers, rows // height, height, columns // width, width)
    return tiles.transpose(2, 3).reshape(workers, -1, height, width)


def join(tiles: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `split`: shape is (workers, *the parameter's)."""
    workers, rows, columns = _matrices(shape)
    height, width = tiles.shape[2:]
    grid = tiles.reshape(workers, rows // height, columns // width, height, width)
    return grid.transpose(2, 3).reshape(tuple(shape))


def chosen(tiles: Tensor, share: float) -> Tensor:
    """Returns a mask of the largest elements of each tile: that share of it, at least one."""
    flat = tiles.flatten(2).abs()
    places = flat.topk(_count(flat.shape[2], share)).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(2, places, True)
    return mask.view_as(tiles)


def payload(tiles: Tensor, share: float, bits: int) -> int:
    """The bytes of one worker's chosen elements, of `bits` bits each, and of their positions."""
    _, number, height, width = tiles.shape
    each = bits + (height * width - 1).bit_length()
    return math.ceil(number * _count(height * width, share) * each / 8)


def _count(elements: int, share: float) -> int:
    return max(1, round(elements * share))


def _matrices(shape: Sequence[int]) -> tuple[int, int, int]:
    workers, *own = shape
    return workers, math.prod(own[:-1]), own[-1] if own else 1
