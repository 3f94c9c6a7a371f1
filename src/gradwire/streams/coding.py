"""A stream as bytes: values, as they are, then places, coded.

coded            values  places      where all know how many entries there are
packed   shape   values  places      where all know how many bytes: it says the rest itself

So values always begin where their type may, and nothing is padded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.kernels import Shape
from gradwire.layout.streams import CODES, SHAPE_BYTES, SizedStreams, row_bytes
from gradwire.streams import Form, Stream


class CodedStreams(SizedStreams):
    """The part of `Streams` that reads and writes bytes, and knows nothing of buckets."""

    # -- of a known number of entries -------------------------------------------------------

    def coded_places(self, n: int, places: Tensor) -> Tensor:
        return self.coded(n, Stream(places, places.new_empty(places.numel(), 0)))

    def read_places(self, n: int, count: int, message: Tensor) -> Tensor:
        return _read_places(n, count, message, self._code(n, count))

    def coded(self, n: int, stream: Stream) -> Tensor:
        return _coded(n, stream, self._code(n, stream.count))

    def read(self, n: int, count: int, like: Stream, message: Tensor) -> Stream:
        return _read(n, count, like, message, self._code(n, count))

    # -- of a known number of bytes ---------------------------------------------------------

    def packed(self, n: int, stream: Stream, form: Form = "smallest") -> Tensor:
        if (form := self._form(form)) != "smallest":
            return _coded(n, stream, CODES[form])
        if stream.count == 0:
            return torch.empty(0, dtype=torch.uint8, device=stream.places.device)
        shape = kernels.shape_of(stream.places, n)
        message, section = _filled(stream, SHAPE_BYTES, kernels.shaped_bytes(n, shape))
        told = torch.tensor(shape, dtype=torch.int32, device=message.device)
        message[:SHAPE_BYTES].copy_(told.view(torch.uint8))
        kernels.encode_shaped(stream.places, n, shape, section)
        return message

    def unpacked(self, n: int, like: Stream, message: Tensor, form: Form = "smallest") -> Stream:
        if (form := self._form(form)) != "smallest":
            return _read(n, _count(n, like, message, form), like, message, CODES[form])
        if message.numel() == 0:
            return Stream(like.places[:0], like.values[:0])
        shape = _shape(message)
        begin, end = SHAPE_BYTES, SHAPE_BYTES + shape.entries * row_bytes(like)
        _check_size(n, shape.entries, end + kernels.shaped_bytes(n, shape), message)
        places = torch.empty(shape.entries, dtype=torch.int32, device=message.device)
        kernels.decode_shaped(message[end:], n, shape, places)
        return Stream(places, _values(message[begin:end], shape.entries, like))


def _filled(stream: Stream, head: int, size: int) -> tuple[Tensor, Tensor]:
    """A message with the values behind its head; and its last bytes, so many."""
    values = stream.values.contiguous().view(torch.uint8).flatten()
    end = head + values.numel()
    message = torch.empty(end + size, dtype=torch.uint8, device=values.device)
    message[head:end].copy_(values)
    return message, message[end:]


def _coded(n: int, stream: Stream, code: str) -> Tensor:
    message, section = _filled(stream, 0, kernels.code_bytes(code, n, stream.count))
    kernels.encode_indices(stream.places, n, code, section)
    return message


def _read(n: int, count: int, like: Stream, message: Tensor, code: str) -> Stream:
    end = count * row_bytes(like)
    _check_size(n, count, end + kernels.code_bytes(code, n, count), message)
    places = _read_places(n, count, message[end:], code)
    return Stream(places, _values(message[:end], count, like))


def _read_places(n: int, count: int, message: Tensor, code: str) -> Tensor:
    places = torch.empty(count, dtype=torch.int32, device=message.device)
    kernels.decode_indices(message, n, code, places)
    return places


def _values(data: Tensor, count: int, like: Stream) -> Tensor:
    """Sharing memory with the message, where its place allows it."""
    if data.storage_offset() % like.values.element_size():
        data = data.clone()
    return data.view(like.values.dtype).view(count, *like.values.shape[1:])


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


def _count(n: int, like: Stream, message: Tensor, form: Form) -> int:
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
