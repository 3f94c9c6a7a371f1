"""Averages many parameters' payloads: in one call if kernels can, else one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.local import stands_for
from gradwire.strategy import Compressor, Key, Sections


class Sum(NamedTuple):
    """The payloads to add up for one parameter, or a piece of one: in order, divided once.

    target: (n,), overwritten. key: that of the encoding. name, whence: for error messages.
    """

    payloads: Sequence[Sections]
    target: Tensor
    divisor: float
    key: Key
    name: str
    whence: str = "payload numbers are ranks"


def sum_all(
    compressor: Compressor, sums: Sequence[Sum], status: Tensor | None = None,
    known: kernels.Known | None = None,
) -> None:  # fmt: skip
    """Writes all targets. Raises PayloadError, which names the parameter whose payload is bad;
    targets are undefined then. status: a word that kernels heed and raise in sums for many. known:
    checks of the steps before."""
    many = _is_said_for_many(compressor)
    try:
        asked = [compressor.added(*one[:4]) for one in sums if many]
        if many and all(asked):
            kernels.add_up([segment for segments in asked for segment in segments], status, known)
            return
    except PayloadError:  # adding one by one shows whose payload it is
        pass
    if status is not None and kernels.is_raised(status):  # `accumulate` does not heed it
        return
    for payloads, target, divisor, key, name, whence in sums:
        try:
            compressor.accumulate(payloads, target, divisor, key)
        except PayloadError as error:
            raise PayloadError(f"'{name}' ({whence}): {error}") from error


def decode_own(
    compressor: Compressor, sections: Sections, x: Tensor, key: Key, status: Tensor
) -> None:
    """Decodes what this rank has just encoded, as `Compressor.decode`. It cannot be damaged, so a
    word that kernels would raise for it is not read. status: that of the encoding."""
    if kernels.goes_on(status) and stands_for(type(compressor), "added", "decode"):
        segments = compressor.added([sections], x, 1.0, key)
        if segments:
            kernels.add_up(segments, kernels.new_status(x.device))
            return
    compressor.decode(sections, x, key)


def heeds(compressor: Compressor, word: Tensor) -> bool:
    """Whether kernels alone write sums of the compressor's payloads: they heed the word, so the
    host need not read it first."""
    return _is_said_for_many(compressor) and kernels.goes_on(word)


def _is_said_for_many(compressor: Compressor) -> bool:
    return stands_for(type(compressor), "added", "accumulate")
