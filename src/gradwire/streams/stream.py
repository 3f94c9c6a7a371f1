"""Sparse vectors: split among owners, written to bytes and read, added up, compared.

coded            values  places      if all know the number of entries
packed   shape   values  places      if all know the number of bytes: the shape says the rest

Values come first, so they are aligned for their dtype without padding. Nothing here knows of
buckets, steps or ranks. `planner.expected` has streams of which only the sizes are known, so that
prices come from the very rounds that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.kernels import Shape
from gradwire.streams.told import read_size

Form: TypeAlias = Literal["smallest", "coo", "bitmap"]
"""How places are packed: in the smallest code; as int32; as a bit per element."""

_SHAPE_BYTES = 4 * len(Shape._fields)  # int32
_CODES = {"coo": "int32", "bitmap": "bitmap"}


class Domains(Protocol):
    """Which rank owns which of a vector's elements, or a table's rows."""

    @property
    def sizes(self) -> Sequence[int]:
        """The number of elements that each rank owns: places in its domain are 0 to one less."""

    def split(self, stream: Stream) -> list[Stream]:
        """Returns the entries in each domain, by place in it. Valid until the next split."""

    def flat(self, owner: int, places: Tensor) -> Tensor:
        """Converts places in an owner's domain to places in the whole, ascending, int32."""


@dataclass(frozen=True, eq=False)
class Stream:
    """A sparse vector of n elements: places, (k,) int32, strictly ascending, and values, (k,).

    Or a table of n rows: then places are row ids, and values are (k, width).
    listed: places are sent as int32 wherever the smallest code is requested.
    """

    places: Tensor
    values: Tensor
    n: int
    listed: bool = False

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.places.numel()

    def __getitem__(self, chosen: Tensor | slice) -> Stream:
        """Returns some of the entries, chosen by a mask, (k,) bool, or a slice."""
        return replace(self, places=self.places[chosen], values=self.values[chosen])

    # -- who owns what ---------------------------------------------------------------------

    def split(self, domains: Domains) -> list[Stream]:
        """Returns each owner's entries, by place in its domain. Valid until the next split."""
        return domains.split(self)

    def over(self, domains: Domains, owner: int) -> Stream:
        """Returns the same entries, as entries of an owner's domain."""
        return replace(self, n=domains.sizes[owner])

    def flat(self, domains: Domains, owner: int) -> Stream:
        """Returns an owner's entries, by place in the whole."""
        whole = sum(domains.sizes)
        return replace(self, places=domains.flat(owner, self.places), n=whole)

    def check_counts(self, domains: Domains, counts: Sequence[int]) -> None:
        """Raises PayloadError unless each domain has its count of the entries."""
        found = [part.count for part in self.split(domains)]
        if found != list(counts):
            raise PayloadError(
                f"as many entries of each parameter must arrive as are selected, {list(counts)}; "
                f"{found} arrived. The message is damaged: run `gradwire doctor`."
            )

    # -- bytes, where the reader knows how many entries there are ----------------------------

    def coded(self) -> Tensor:
        """Returns values and places, places in the smallest code for their number:
        (coded_bytes(),) uint8.

        The size follows from the number of entries alone.
        """
        return self._written(self._code(self.count))

    def coded_bytes(self, count: int | None = None) -> int:
        """Returns the bytes of `count` entries (None: of this stream's) with values like these."""
        count = self.count if count is None else count
        return self._written_bytes(self._code(count), count)

    def read(self, message: Tensor, count: int | None = None) -> Stream:
        """Reads a coded stream like this one, of `count` entries. Raises PayloadError if it is
        damaged."""
        count = self.count if count is None else count
        return self._read(message, self._code(count), count)

    def _code(self, count: int) -> str:
        return "int32" if self.listed else kernels.smallest(self.n, count)

    def _written(self, code: str) -> Tensor:
        message, section = self._filled(0, kernels.code_bytes(code, self.n, self.count))
        kernels.encode_indices(self.places, self.n, code, section)
        return message

    def _written_bytes(self, code: str, count: int) -> int:
        return count * self._row_bytes + kernels.code_bytes(code, self.n, count)

    def _read(self, message: Tensor, code: str, count: int) -> Stream:
        self._check_size(message, count, self._written_bytes(code, count))
        end = count * self._row_bytes
        places = torch.empty(count, dtype=torch.int32, device=message.device)
        kernels.decode_indices(message[end:], self.n, code, places)
        return self._like(places, self._values(message[:end], count))

    # -- bytes that say themselves how many entries there are --------------------------------

    def packed(self, form: Form = "smallest") -> Tensor:
        """Returns values and places as uint8, in a code that is smaller where places come in
        crowds. A stream without entries has no bytes."""
        form = self._form(form)
        if form != "smallest":
            return self._written(_CODES[form])
        if self.count == 0:
            return torch.empty(0, dtype=torch.uint8, device=self.places.device)
        shape = kernels.shape_of(self.places, self.n)
        message, section = self._filled(_SHAPE_BYTES, kernels.shaped_bytes(self.n, shape))
        told = torch.tensor(shape, dtype=torch.int32, device=message.device)
        message[:_SHAPE_BYTES].copy_(told.view(torch.uint8))
        kernels.encode_shaped(self.places, self.n, shape, section)
        return message

    def _packed_bytes(self, shape: Shape, form: Form) -> int:
        """Returns the bytes of a packed stream of that shape, with values like these."""
        if form != "smallest":
            return self._written_bytes(_CODES[form], shape.entries)
        if shape.entries == 0:
            return 0
        values = shape.entries * self._row_bytes
        return _SHAPE_BYTES + values + kernels.shaped_bytes(self.n, shape)

    def most_packed_bytes(self, domains: Domains | None = None) -> int:
        """Returns the most packed bytes of any stream over n elements, or over any of the domains,
        with values like these."""
        n = self.n if domains is None else max(domains.sizes)
        return _SHAPE_BYTES + n * (4 + self._row_bytes)

    def unpacked(self, message: Tensor, form: Form = "smallest") -> Stream:
        """Reads a packed stream over as many elements, with values like these. Raises PayloadError
        if it is damaged."""
        form = self._form(form)
        if form != "smallest":
            return self._read(message, _CODES[form], self._count_in(message, form))
        if message.numel() == 0:
            none = torch.empty(0, dtype=torch.int32, device=message.device)
            return self._like(none, self.values[:0])
        shape = _shape(message)
        begin, end = _SHAPE_BYTES, _SHAPE_BYTES + shape.entries * self._row_bytes
        self._check_size(message, shape.entries, end + kernels.shaped_bytes(self.n, shape))
        places = torch.empty(shape.entries, dtype=torch.int32, device=message.device)
        kernels.decode_shaped(message[end:], self.n, shape, places)
        return self._like(places, self._values(message[begin:end], shape.entries))

    def read_size(self, message: Tensor, most: int) -> int:
        """Reads the number of bytes that a rank announces. Raises PayloadError if damaged."""
        return read_size(message, most)

    def _form(self, form: Form) -> Form:
        return "coo" if self.listed and form == "smallest" else form

    def _count_in(self, message: Tensor, form: Form) -> int:
        """Returns the number of entries that a valid message of a form without a shape has."""
        bits = -(-self.n // 8) if form == "bitmap" else 0
        each = self._row_bytes + (4 if form == "coo" else 0)
        return min(max(0, message.numel() - bits) // each, self.n)

    # -- values in bytes ---------------------------------------------------------------------

    @property
    def _row_bytes(self) -> int:
        """The size in bytes of the values of one entry."""
        width = self.values.shape[1] if self.values.dim() > 1 else 1
        return width * self.values.element_size()

    def _filled(self, head: int, size: int) -> tuple[Tensor, Tensor]:
        """Returns a message with the values after `head` bytes, and a view of its last `size`
        bytes."""
        values = self.values.contiguous().view(torch.uint8).flatten()
        end = head + values.numel()
        message = torch.empty(end + size, dtype=torch.uint8, device=values.device)
        message[head:end].copy_(values)
        return message, message[end:]

    def _values(self, data: Tensor, count: int) -> Tensor:
        """Returns the values, sharing memory with the message if their offset allows it."""
        if data.storage_offset() % self.values.element_size():
            data = data.clone()
        return data.view(self.values.dtype).view(count, *self.values.shape[1:])

    def _check_size(self, message: Tensor, count: int, size: int) -> None:
        if message.numel() != size:
            raise PayloadError(
                f"{count} entries of {self.n} elements take {size} bytes; {message.numel()} "
                "arrived. The message, or the counts that were exchanged before it, are damaged: "
                "run `gradwire doctor`."
            )

    def _like(self, places: Tensor, values: Tensor) -> Stream:
        return Stream(places, values, self.n, self.listed)

    # -- arithmetic --------------------------------------------------------------------------

    def mean_with(self, others: Sequence[Stream], dtype: torch.dtype) -> Stream:
        """Returns the mean of this stream and others: added up in that order in fp32, divided once
        by their number. Zeros are left out."""
        return self._sum([self, *others], float(1 + len(others)), dtype)

    def plus(self, other: Stream) -> Stream:
        """Returns the sum, fp32, the same to the bit in either order. Zeros are left out."""
        return self._sum([self, other], 1.0, torch.float32)

    def _sum(self, parts: Sequence[Stream], divisor: float, dtype: torch.dtype) -> Stream:
        ids, values = [p.places for p in parts], [p.values for p in parts]
        if self.values.dim() > 1:
            return self._like(*kernels.sum_rows(ids, values, divisor, dtype))
        most = min(self.n, sum(part.count for part in parts))
        places = torch.empty(most, dtype=torch.int32, device=self.places.device)
        sums = torch.empty(most, dtype=dtype, device=self.places.device)
        count = kernels.merge_streams(self.n, ids, values, divisor, places, sums)
        return self._like(places[:count], sums[:count])

    def top(self, other: Stream, domains: Domains, counts: Sequence[int]) -> Stream:
        """Returns the largest entries of the sum, `counts` of each domain, which are ranges.

        Both streams have exactly `counts` of each already.
        """
        first = (0, *accumulate(counts))
        places = torch.empty(first[-1], dtype=torch.int32, device=self.places.device)
        values = torch.empty(first[-1], dtype=torch.float32, device=self.places.device)
        begins = accumulate(domains.sizes, initial=0)
        for i, (n, at) in enumerate(zip(domains.sizes, begins)):
            part = slice(first[i], first[i + 1])
            kernels.top_of_two(
                n, self.places[part] - at, self.values[part], other.places[part] - at,
                other.values[part], counts[i], places[part], values[part],
            )  # fmt: skip
            places[part] += at
        return self._like(places, values)

    def largest(self, domains: Domains, counts: Sequence[int]) -> Stream:
        """Returns the largest entries, `counts` of each domain; ties go to the lower place.
        Domains are ranges with at least as many."""
        chosen, first = [torch.empty(0, dtype=torch.int32, device=self.places.device)], 0
        for part, k in zip(self.split(domains), counts):
            at = torch.empty(k, dtype=torch.int32, device=self.places.device)
            values = torch.empty(k, device=self.places.device, dtype=torch.float32)
            kernels.topk(part.values, k, at, values, kernels.new_status(part.values.device))
            chosen.append(at + first)
            first += part.count
        every = torch.cat(chosen)
        return self._like(self.places[every], self.values[every])

    def at(self, places: Tensor) -> Tensor:
        """Returns the values at these places, fp32, zeros where it has none. places: ascending,
        with all of its own among them."""
        out = torch.zeros(places.numel(), device=places.device, dtype=torch.float32)
        out[torch.searchsorted(places, self.places)] = self.values.float()
        return out

    def among(self, other: Stream) -> Tensor:
        """Returns whether each entry's place is also among the other's, (k,) bool."""
        found = torch.empty(self.count, dtype=torch.bool, device=self.places.device)
        kernels.contained(self.places, other.places, found)
        return found


def _shape(message: Tensor) -> Shape:
    """Reads the shape at the beginning of a message, and checks nothing else."""
    if message.numel() < _SHAPE_BYTES:
        raise PayloadError(
            f"a message of entries must have at least {_SHAPE_BYTES} bytes; {message.numel()} "
            "arrived. The message is damaged: run `gradwire doctor`."
        )
    told = message[:_SHAPE_BYTES].clone().view(torch.int32).tolist()
    if told[0] == 0:
        raise PayloadError(
            f"a message of no entries must have no bytes; {message.numel()} arrived. The message "
            "is damaged: run `gradwire doctor`."
        )
    return Shape(*told)
