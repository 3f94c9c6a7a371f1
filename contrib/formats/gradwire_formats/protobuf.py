"""Reads protocol buffers in a file, without their schema: numbered fields.

Source: "Encoding", Protocol Buffers documentation: varints, and records with a wire type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from gradwire.errors import NetworkError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field: TypeAlias = "tuple[int, int | bytes]"
"""A field's number, and its value: an unsigned integer, or bytes."""


def messages(data: bytes) -> Iterator[bytes]:
    """Yields the messages of a file in which a length precedes each. Raises NetworkError with the
    byte."""
    at = 0
    while at < len(data):
        at, own = _held(data, at)
        yield own


def fields(data: bytes) -> Iterator[Field]:
    """Yields the fields of a message, in order. Raises NetworkError with the byte."""
    at = 0
    while at < len(data):
        at, key = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == VARINT:
            at, value = _varint(data, at)
        elif kind == BYTES:
            at, value = _held(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            at, value = _cut(data, at, size)
            value = int.from_bytes(value, "little")
        else:
            raise NetworkError(
                f"fields are numbers or bytes, wire types 0, 1, 2 and 5; byte {at} says {kind}. "
                "Write the file again, by its own tool."
            )
        yield number, value


def signed(value: int) -> int:
    """Returns the signed number of 64 bits that was sent as unsigned."""
    return value - (1 << 64) if value >> 63 else value


def numbers(value: int | bytes) -> list[int]:
    """Returns the numbers of a repeated field, sent one at a time or packed."""
    if isinstance(value, int):
        return [value]
    found, at = list[int](), 0
    while at < len(value):
        at, one = _varint(value, at)
        found.append(one)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns where the next item begins, and the number."""
    value = 0
    for i in range(10):
        byte = _cut(data, at + i, 1)[1][0]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return at + i + 1, value & (1 << 64) - 1
    raise NetworkError(
        f"a number has 10 bytes at most; that at byte {at} has more. Write the file again, by its "
        "own tool."
    )


def _held(data: bytes, at: int) -> tuple[int, bytes]:
    at, size = _varint(data, at)
    return _cut(data, at, size)


def _cut(data: bytes, at: int, size: int) -> tuple[int, bytes]:
    if at + size > len(data):
        raise NetworkError(
            f"what is announced is there; {size} bytes at byte {at} are beyond the end, "
            f"{len(data)}. The file was cut off: copy it again."
        )
    return at + size, data[at : at + size]
