"""Columns of numbers: their two types, and the checks of all that the extension reads."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwire.errors import NetworkError

Ints: TypeAlias = NDArray[np.int64]
"""Numbers of hosts, flows, links and paths; bytes, and picoseconds."""
Reals: TypeAlias = NDArray[np.float64]
"""Seconds, rates, and shares."""
_MOST = 1e20
"""The largest of all numbers: sums and products of smaller ones stay finite."""


def whole(name: str, values: ArrayLike, end: int = 1 << 63, least: int = 0) -> Ints:
    """Returns a row of whole numbers from `least` to below `end`, contiguous in memory; a single
    number is a row. Raises NetworkError for anything else."""
    rule = f"whole numbers from {least} to {end - 1}"
    given = _row(name, values, "iu", rule)
    if given.size and not least <= int(given.min()) <= int(given.max()) < end:
        wrong = int(((given < least) | (given >= end)).argmax())
        raise NetworkError(
            f"{name} must be {rule}; number {wrong} is {given[wrong]}. Correct it, or leave it "
            "out."
        )
    return np.ascontiguousarray(given, np.int64)


def real(name: str, values: ArrayLike) -> Reals:
    """Returns a row of numbers from 0 to 10^20, as `whole` does."""
    given = np.ascontiguousarray(_row(name, values, "iuf", "numbers"), np.float64)
    fits = (given >= 0) & (given <= _MOST)
    if not fits.all():
        wrong = int((~fits).argmax())
        raise NetworkError(
            f"{name} must be numbers from 0 to {_MOST:g}; number {wrong} is {given[wrong]}. "
            "Correct it, or leave it out."
        )
    return given


def each(name: str, values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Returns a value for each row; a single one is for all. Raises NetworkError for any other
    number of values."""
    if len(values) not in (1, rows):
        raise NetworkError(
            f"{name} must have one value for each of {rows} rows, or one for all; got "
            f"{len(values)}. Pass as many."
        )
    return np.broadcast_to(values, rows)


def same_length(**columns: Sized) -> None:
    """Raises NetworkError unless columns are equally long."""
    if len({len(column) for column in columns.values()}) > 1:
        got = ", ".join(f"{len(column)} of {name}" for name, column in columns.items())
        raise NetworkError(
            f"all columns must have the same length; got {got}. Pass one value per row in each."
        )


def _row(name: str, values: ArrayLike, kinds: str, rule: str) -> NDArray[Any]:
    try:
        given = np.atleast_1d(np.asarray(values))
    except ValueError:  # rows of different lengths
        given = np.zeros((0, 0))
    if given.ndim != 1 or (given.size and given.dtype.kind not in kinds):
        raise NetworkError(
            f"{name} must be one row of {rule}; got {given.dtype} of shape {given.shape}. Pass a "
            "list or an array of them."
        )
    return given
