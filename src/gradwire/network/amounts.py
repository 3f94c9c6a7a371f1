"""Amounts in whole parts of a byte: 64-bit numbers if they fit, else Python's integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.network.checked import Ints, Reals

Amounts = NDArray[Any]  # of int64, or of Python's integers
_FITS = 1 << 62


def numbers(values: Sequence[int]) -> Amounts:
    """Returns these numbers as amounts."""
    fits = all(-_FITS < value < _FITS for value in values)
    return np.array(values, np.int64 if fits else object)


def scaled(amount: Amounts, factor: int | Amounts) -> Amounts:
    """Multiplies amounts by a factor, or by one each, in a type that their sum fits too."""
    largest = abs(factor) if isinstance(factor, int) else int(np.abs(factor).max(initial=1))
    most = int(np.abs(amount).max(initial=0)) * largest
    if largest < _FITS and most * max(len(amount), 1) < _FITS:
        return amount.astype(np.int64) * factor
    return amount.astype(object) * factor


def summed(place: Ints, amount: Amounts, places: int) -> Amounts:
    """Returns the sum of the amounts at each place, in a type that the sum of all fits too."""
    fits = amount.dtype != object and float(amount.sum(dtype=float)) < _FITS
    found = np.zeros(places, np.int64 if fits else object)
    np.add.at(found, place, amount.astype(found.dtype))
    return found


def parts_of(unit: int, divisors: Ints) -> Amounts:
    """Returns unit // divisors, each of which divides the unit."""
    values, which = np.unique(divisors, return_inverse=True)
    return numbers([unit // int(value) for value in values])[which.reshape(-1)]


def reduced(amount: Amounts, unit: int) -> tuple[Amounts, int]:
    """Returns the same amounts and their unit, both without their common divisor."""
    if unit == 1 or not len(amount):
        return amount, unit
    common = math.gcd(unit, int(np.gcd.reduce(amount)))
    found = amount // common
    return (scaled(found, 1) if found.dtype == object else found), unit // common


def as_bytes(amount: Amounts, unit: int) -> Reals:
    """Returns the amounts in bytes, rounded to floating-point numbers."""
    if amount.dtype != object and unit < _FITS:
        return amount / unit
    return np.array([int(value) / unit for value in amount], np.float64)


def shrunk(amount: Amounts, unit: int, bits: int = 62) -> tuple[Ints, float]:
    """Returns nearly the same amounts in 64 bits, and their unit: for code that compares them.
    bits: their sum stays below 2^bits; with 53, sums of floating-point numbers are exact."""
    fits = bits >= 62 or float(amount.sum(dtype=float)) < 2.0 ** (bits - 1)
    if amount.dtype != object and unit < _FITS and fits:
        return amount, float(unit)
    bytes = as_bytes(amount, unit)
    finer = 2.0 ** math.floor(bits - 2 - math.log2(float(bytes.sum()) or 1.0))
    return np.rint(bytes * finer).astype(np.int64), finer
