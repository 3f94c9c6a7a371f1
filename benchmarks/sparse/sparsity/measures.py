"""Measures of how sparse tensors are, and how evenly: the definitions of ZEN, section 2.

I_i is the set of places where worker i's tensor is not zero (NaN is not zero), M the number of
elements, n of workers. Without non-zeros, the overlap is 0 and every ratio is 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.errors import UsageError
from sparsity.volumes import Sparsity, reference

PAIRS = 64
"""The most pairs of workers that are compared."""


class Imbalances(NamedTuple):
    """The busiest owner's load, relative to the mean; 1 is perfect."""

    push: float
    """max over workers i and owners j of n·|I_i at j| / |I_i|: what workers send to owners."""
    pull: float
    """max over owners j of n·|U at j| / |U|, U the union of all I_i: what owners send back."""


def measure(tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Measures the sparsity of one tensor per worker, all of one shape, on any device.

    Returns:
        workers, elements: n and M.
        density: |I_i| / M, the mean over workers.
        overlap: |I_i ∩ I_j| / min(|I_i|, |I_j|), the mean over pairs (64 drawn ones, if there
            are more); 0 for one worker.
        densification: γ(n), the union's density over `density`, from 1 to n.
        skewness: of n even contiguous ranges, the fullest one's density over the tensor's, the
            mean over workers, from 1 to n.
        even_push_imbalance, even_pull_imbalance: `imbalances` where owners have these ranges.
        rows_density: the fraction of rows that are not all zero, the mean over workers; None
            unless tensors are matrices.
        whole_rows: whether tensors are matrices whose rows are all zero or without any zero.

    Raises:
        UsageError: no tensors, empty ones, or different shapes.
    """
    masks = _masks(tensors)
    flat = [mask.view(-1) for mask in masks]
    found = _ratios(flat)
    even = imbalances(tensors, even_ranges(flat[0].numel(), len(flat)))
    rows = [mask.any(1) for mask in masks] if masks[0].dim() == 2 else []
    return found | {
        "even_push_imbalance": even.push,
        "even_pull_imbalance": even.pull,
        "rows_density": _mean([_density(each) for each in rows]) if rows else None,
        "whole_rows": _whole_rows(masks),
    }


def _ratios(flat: Sequence[Tensor]) -> dict[str, Any]:
    density = _mean([_density(mask) for mask in flat])
    return {
        "workers": len(flat),
        "elements": flat[0].numel(),
        "density": density,
        "overlap": _mean([_overlap(flat[i], flat[j]) for i, j in _pairs(len(flat))]),
        "densification": _ratio(_density(_union(flat)), density),
        "skewness": _mean([_skewness(mask, len(flat)) for mask in flat]),
    }


def imbalances(tensors: Sequence[Tensor], owner_of: Callable[[Tensor], Tensor]) -> Imbalances:
    """Measures how evenly owners share the non-zeros, if there are as many owners as tensors.

    Args:
        tensors: one per worker, all of one shape.
        owner_of: from ascending flat places (int64, any number) to the owner of each, from 0.

    Raises:
        UsageError: tensors as for `measure`; an owner that does not exist.
    """
    masks, n = [mask.view(-1) for mask in _masks(tensors)], len(tensors)
    shares = [_share(mask, owner_of, n) for mask in masks]
    return Imbalances(max(shares), _share(_union(masks), owner_of, n))


def even_ranges(elements: int, workers: int) -> Callable[[Tensor], Tensor]:
    """Returns the map by which worker j owns the places from j·M/n to (j+1)·M/n, rounded down."""
    return lambda places: ((places + 1) * workers - 1) // elements


def _share(mask: Tensor, owner_of: Callable[[Tensor], Tensor], n: int) -> float:
    """Returns the busiest owner's part, over the mean."""
    places = mask.nonzero().view(-1)
    if not len(places):
        return 1.0
    counts = torch.bincount(owner_of(places), minlength=n)
    if len(counts) > n:
        raise UsageError(
            f"owner_of gives every place one of as many owners as there are tensors, 0 to "
            f"{n - 1}; got {len(counts) - 1}. Make the map for {n} workers."
        )
    return n * int(counts.max()) / len(places)


# -- for the formulas --------------------------------------------------------------------------


def measured(tensors: Sequence[Tensor]) -> Sparsity:
    """Returns what `volumes` needs to know, from tensors: γ(k) is that of the first k of them.

    Raises:
        UsageError: tensors as for `measure`; later, γ of more tensors than there are.
    """
    masks = _masks(tensors)
    flat = [mask.view(-1) for mask in masks]
    density, unions = _mean([_density(mask) for mask in flat]), _growth(flat)

    def gamma(k: int) -> float:
        if not 1 <= k <= len(unions):
            raise UsageError(
                f"the densification of {len(unions)} tensors is known for 1 to {len(unions)} "
                f"workers; got {k}. Measure more tensors, or use expected(preset)."
            )
        return _ratio(unions[k - 1], density)

    def skewness(workers: int) -> float:
        return _mean([_skewness(mask, workers) for mask in flat])

    columns = masks[0].shape[1] if _whole_rows(masks) else None
    return Sparsity(flat[0].numel(), density, gamma, columns, skewness)


def reference_bytes(tensors: Sequence[Tensor]) -> float:
    """Returns the bytes that a node must receive on average to know the sum of these fp32 tensors.

        4·M·(d + (n-2)/n·D)  +  M·(n-1)/n·(H(d) + H(D))/8

    d is the mean density of one tensor, D that of the union, H the binary entropy in bits. If
    non-zeros come in whole rows of a matrix, the second term counts rows instead of elements. The
    first term is a lower bound; the second is the cost of places if they are random.

    Raises:
        UsageError: as for `measure`.
    """
    return reference(measured(tensors), len(tensors))


# -- masks -------------------------------------------------------------------------------------


def _masks(tensors: Sequence[Tensor]) -> list[Tensor]:
    if not tensors:
        raise UsageError("sparsity is measured on one tensor per worker; got none. Give some.")
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1 or not tensors[0].numel():
        raise UsageError(
            f"the tensors of all workers have one shape, with at least one element; got "
            f"{', '.join(str(list(shape)) for shape in shapes)}. Give each worker's gradient of "
            f"the same parameter."
        )
    return [(tensor != 0).contiguous() for tensor in tensors]


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _density(mask: Tensor) -> float:
    return _count(mask) / mask.numel()


def _overlap(one: Tensor, other: Tensor) -> float:
    least = min(_count(one), _count(other))
    return _count(one & other) / least if least else 0.0


def _pairs(n: int) -> list[tuple[int, int]]:
    pairs = list(combinations(range(n), 2))
    return pairs if len(pairs) <= PAIRS else random.Random(0).sample(pairs, PAIRS)


def _growth(flat: Sequence[Tensor]) -> list[float]:
    """Returns the densities of the unions of the first, the first two, … tensors."""
    union, found = torch.zeros_like(flat[0]), []
    for mask in flat:
        union |= mask
        found.append(_density(union))
    return found


def _union(flat: Sequence[Tensor]) -> Tensor:
    union = flat[0].clone()
    for mask in flat[1:]:
        union |= mask
    return union


def _skewness(mask: Tensor, ranges: int) -> float:
    m = mask.numel()
    ends = [(j * m // ranges, (j + 1) * m // ranges) for j in range(ranges)]
    fullest = max(_density(mask[begin:end]) for begin, end in ends if end > begin)
    return _ratio(fullest, _density(mask))


def _whole_rows(masks: Sequence[Tensor]) -> bool:
    return masks[0].dim() == 2 and all(bool((m.any(1) == m.all(1)).all()) for m in masks)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
