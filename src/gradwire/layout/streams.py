"""How many bytes sparse payloads take, whoever asks: arithmetic on numbers of entries."""

from __future__ import annotations

from gradwire import kernels
from gradwire.kernels import Shape
from gradwire.layout.message import HEADER_BYTES
from gradwire.member import padded
from gradwire.streams import Form, Stream, Streams

SHAPE_BYTES = 4 * len(Shape._fields)  # int32
WORD = 8  # bytes
CODES = {"coo": "int32", "bitmap": "bitmap"}


class SizedStreams(Streams):
    """The part of `Streams` that knows sizes, and needs no data.

    is_listed: places are int32 wherever the smallest code is asked for, as the compressor's are.
    """

    is_listed = False

    def _code(self, n: int, count: int) -> str:
        return "int32" if self.is_listed else kernels.smallest(n, count)

    def _form(self, form: Form) -> Form:
        return "coo" if self.is_listed and form == "smallest" else form

    def coded_places_bytes(self, n: int, count: int) -> int:
        return kernels.code_bytes(self._code(n, count), n, count)

    def coded_bytes(self, n: int, count: int, like: Stream) -> int:
        return count * row_bytes(like) + self.coded_places_bytes(n, count)

    def most_packed_bytes(self, n: int, like: Stream) -> int:
        return SHAPE_BYTES + n * (4 + row_bytes(like))

    def packed_bytes(self, n: int, shape: Shape, like: Stream, form: Form = "smallest") -> int:
        """Bytes of a packed stream of that shape."""
        values = shape.entries * row_bytes(like)
        if (form := self._form(form)) != "smallest":
            return values + kernels.code_bytes(CODES[form], n, shape.entries)
        return SHAPE_BYTES + values + kernels.shaped_bytes(n, shape) if shape.entries else 0

    def sealed_bytes(self, size: int) -> int:
        return padded(size) + WORD


def announced_bytes(numbers: int) -> int:
    """Bytes of the message that tells all ranks so many numbers."""
    return HEADER_BYTES + WORD * (numbers + 1)


def row_bytes(like: Stream) -> int:
    """Bytes of the values of one entry."""
    width = like.values.shape[1] if like.values.dim() > 1 else 1
    return width * like.values.element_size()
