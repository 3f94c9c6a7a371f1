"""Places and values as bytes: values, as they are, then places, coded.

coded            values  places      where all know how many entries there are
packed   shape   values  places      where all know how many bytes: it says the rest itself

So values always begin where their type may, and nothing is padded.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.kernels import Shape

Form: TypeAlias = Literal["smallest", "coo", "bitmap"]
"""How places are packed: as small as can be; int32; a bit per element."""
Entries: TypeAlias = "tuple[Tensor, Tensor]"
"""Places and values."""

SHAPE_BYTES = 4 * len(Shape._fields)  # int32
CODES = {"coo": "int32", "bitmap": "bitmap"}


def row_bytes(values: Tensor) -> int:
    """Bytes of the values of one entry."""
    width = values.shape[1] if values.dim() > 1 else 1
    return width * values.element_size()


def packed_bytes(n: int, shape: Shape, like: Tensor, form: Form) -> int:
    """Bytes of a packed stream of that shape, with values like those."""
    values = shape.entries * row_bytes(like)
    if form != "smallest":
        return values + kernels.code_bytes(CODES[form], n, shape.entries)
    return SHAPE_BYTES + values + kernels.shaped_bytes(n, shape) if shape.entries else 0


def coded(n: int, places: Tensor, values: Tensor, code: str) -> Tensor:
    """The bytes of entries, for a reader that knows their number."""
    message, section = _filled(values, 0, kernels.code_bytes(code, n, places.numel()))
    kernels.encode_indices(places, n, code, section)
    return message


def read(n: int, count: int, like: Tensor, message: Tensor, code: str) -> Entries:
    """Entries of that number, with values like those; PayloadError unless they are coded so."""
    end = count * row_bytes(like)
    _check_size(n, count, end + kernels.code_bytes(code, n, count), message)
    places = torch.empty(count, dtype=torch.int32, device=message.device)
    kernels.decode_indices(message[end:], n, code, places)
    return places, _values(message[:end], count, like)


def packed(n: int, places: Tensor, values: Tensor, form: Form) -> Tensor:
    """The bytes of entries, which say themselves how many there are; of none nothing."""
    if form != "smallest":
        return coded(n, places, values, CODES[form])
    if places.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=places.device)
    shape = kernels.shape_of(places, n)
    message, section = _filled(values, SHAPE_BYTES, kernels.shaped_bytes(n, shape))
    told = torch.tensor(shape, dtype=torch.int32, device=message.device)
    message[:SHAPE_BYTES].copy_(told.view(torch.uint8))
    kernels.encode_shaped(places, n, shape, section)
    return message


def unpacked(n: int, like: Tensor, message: Tensor, form: Form) -> Entries:
    """Packed entries, with values like those; PayloadError unless they are such."""
    if form != "smallest":
        return read(n, _count(n, like, message, form), like, message, CODES[form])
    if message.numel() == 0:
        return torch.empty(0, dtype=torch.int32, device=message.device), like[:0]
    shape = _shape(message)
    begin, end = SHAPE_BYTES, SHAPE_BYTES + shape.entries * row_bytes(like)
    _check_size(n, shape.entries, end + kernels.shaped_bytes(n, shape), message)
    places = torch.empty(shape.entries, dtype=torch.int32, device=message.device)
    kernels.decode_shaped(message[end:], n, shape, places)
    return places, _values(message[begin:end], shape.entries, like)


def _filled(values: Tensor, head: int, size: int) -> Entries:
    """A message with the values behind its head; and its last bytes, so many."""
    values = values.contiguous().view(torch.uint8).flatten()
    end = head + values.numel()
    message = torch.empty(end + size, dtype=torch.uint8, device=values.device)
    message[head:end].copy_(values)
    return message, message[end:]


def _values(data: Tensor, count: int, like: Tensor) -> Tensor:
    """Sharing memory with the message, where its place allows it."""
    if data.storage_offset() % like.element_size():
        data = data.clone()
    return data.view(like.dtype).view(count, *like.shape[1:])


def _shape(message: Tensor) -> Shape:
    """What a message begins with; nothing else is looked at."""
    if message.numel() < SHAPE_BYTES:
        raise PayloadError(
            f"a stream has at least {SHAPE_BYTES} bytes; {message.numel()} arrived. The message "
            "is damaged: run `gradwire doctor`."
        )
    told = message[:SHAPE_BYTES].clone().view(torch.int32).tolist()
    if told[0] == 0:
        raise PayloadError(
            f"a stream of no entries has no bytes; {message.numel()} arrived. The message is "
            "damaged: run `gradwire doctor`."
        )
    return Shape(*told)


def _count(n: int, like: Tensor, message: Tensor, form: Form) -> int:
    """How many entries a message of a form without a shape must have, if it is one."""
    bits = -(-n // 8) if form == "bitmap" else 0
    each = row_bytes(like) + (4 if form == "coo" else 0)
    count = max(0, message.numel() - bits) // each
    return min(count, n)


def _check_size(n: int, count: int, size: int, message: Tensor) -> None:
    if message.numel() != size:
        raise PayloadError(
            f"{count} entries of {n} take {size} bytes; {message.numel()} arrived. The message "
            "is damaged, or the counts that were exchanged are: run `gradwire doctor`."
        )
