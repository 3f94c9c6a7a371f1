"""The averages of many parameters' payloads: of block codes in one call, of others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.strategy import Compressor, Key, Sections


class Sum(NamedTuple):
    """What is added up for one parameter, or a piece of one, in order, divided once.

    target: (n,), overwritten. key: that of the encoding. name, whence: what an error says.
    """

    payloads: Sequence[Sections]
    target: Tensor
    divisor: float
    key: Key
    name: str
    whence: str = "payload r came from rank r"


def sum_all(compressor: Compressor, sums: Sequence[Sum]) -> None:
    """Write all targets. PayloadError names the parameter whose payload is bad; targets mean
    nothing then."""
    tables = [_segments(compressor, one) for one in sums]
    if not all(tables):
        _one_by_one(compressor, sums)
        return
    try:
        kernels.accumulate_many_codes([segment for table in tables for segment in table])
    except PayloadError:
        _one_by_one(compressor, sums)  # which says whose it is


def _one_by_one(compressor: Compressor, sums: Sequence[Sum]) -> None:
    for payloads, target, divisor, key, name, whence in sums:
        try:
            compressor.accumulate(payloads, target, divisor, key)
        except PayloadError as error:
            raise PayloadError(f"'{name}' ({whence}): {error}") from error


def _segments(compressor: Compressor, one: Sum) -> list[kernels.SumCodes]:
    """None where payloads are no block codes."""
    of_ranks = zip(*(compressor.blocks(payload, None) for payload in one.payloads))
    return [
        kernels.SumCodes(
            blocks[0].form, one.target if (at := blocks[0].place) is None else one.target[at],
            [(block.codes, block.scales) for block in blocks], one.divisor,
        )
        for blocks in of_ranks
    ]  # fmt: skip
