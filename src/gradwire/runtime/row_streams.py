"""A bucket of tables, whose gradients are COO (ids of rows, and rows), as one stream of rows.

table 0, 100 × 8     table 1, 50 × 16         rows of 8: the largest width that divides all
ids, rows            ids, rows
└────── one stream: row 3 of table 1 is two, 106 and 107 ──────┘

Nothing is compressed, and there are no residuals: the result is the average of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.local import Rounds
from gradwire.runtime.codec import Codec
from gradwire.runtime.streams import BucketStreams
from gradwire.streams import Ranges, Stream
from gradwire.streams.rows import CooRows, Rows, check_layouts, table_of


class RowStreams(BucketStreams):
    """The local work on one bucket of one rank, step after step. width: of the stream's rows."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        shapes = [p.shape for p in codec.bucket.parameters]
        self._widths = [math.prod(shape[1:]) for shape in shapes]
        self.width = math.gcd(*self._widths) or 1
        many = [width // self.width for width in self._widths]
        self._first = [0, *accumulate(shape[0] * m for shape, m in zip(shapes, many))]
        self.size, self.parameters = self._first[-1], Ranges(self._first)

    @property
    def tables(self) -> Sequence[Rows | CooRows]:
        """The tables of this step, once `entries` was called."""
        return self._tables

    def begin(self) -> None:
        super().begin()
        self._layouts = list[int]()  # kept until the next `tell` sends them

    def tell(
        self, *numbers: int, most: int | None = None, finite: bool = True,
        luggage: Tensor | None = None,
    ) -> Rounds[list[list[int]] | None]:  # fmt: skip
        layouts, self._layouts = self._layouts, []
        told = yield from super().tell(
            *numbers, *layouts, most=most, finite=finite, luggage=luggage
        )
        if told is None or not layouts:
            return told
        check_layouts(self._codec.bucket.names, [row[len(numbers) :] for row in told])
        return [row[: len(numbers)] for row in told]

    def entries(self) -> Stream:
        kernels.check_index_range(self.size)
        self._tables = tables = [table_of(local) for local in self._codec.locals()]
        self._layouts = [int(isinstance(table, CooRows)) for table in tables]
        ids = [table.nonzero() for table in tables]
        values = torch.cat([
            table.take(own).view(-1, self.width) for table, own in zip(tables, ids)
        ])  # fmt: skip
        places = torch.cat([
            _parts(own, width // self.width) + first
            for own, width, first in zip(ids, self._widths, self._first)
        ])  # fmt: skip
        self._finite = kernels.is_finite(values.view(-1))
        self.counts = [own.numel() * width // self.width for own, width in zip(ids, self._widths)]
        return Stream(places, values, self.size)

    def write(self, means: Sequence[Stream] | Tensor) -> None:
        assert not isinstance(means, Tensor), "nobody makes tables whole"
        places, values = (torch.cat([getattr(s, x) for s in means]) for x in ("places", "values"))
        if len(means) > 1:  # a stream from each owner
            order = places.argsort()
            places, values = places[order], values[order]
        parts = Stream(places, values, self.size).split(self.parameters)
        for table, part, width in zip(self._tables, parts, self._widths):
            many = width // self.width or 1  # an owner of a row has all its parts
            ids = part.places[::many] // many
            if many > 1 and not torch.equal(part.places, _parts(ids, many)):
                raise PayloadError(
                    f"all {many} parts in which a row is sent must arrive; some parts of "
                    f"{self._codec.bucket.names} did not. The message is damaged: run `gradwire "
                    "doctor`."
                )
            table.expect(ids)
            table.put(part.values.reshape(ids.numel(), width), (0, width))
            table.finish()


def _parts(ids: Tensor, many: int) -> Tensor:
    """Returns the ids of rows' parts, `many` of each row."""
    if many == 1:
        return ids
    within = torch.arange(many, dtype=torch.int32, device="cpu")
    return (ids[:, None] * many + within).flatten()
