"""Sparse vectors as values: cut among owners, written as bytes and read, added up, compared.

coded            values  places      where all know how many entries there are
packed   shape   values  places      where all know how many bytes: it says the rest itself

So values, as they are, always begin where their type may, and nothing is padded. Nothing here
knows of buckets, steps or ranks. `planner.expected` has streams of which only the numbers are
known, so that prices come from the very rounds that run.
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
"""How places are packed: as small as can be; int32; a bit per element."""

_SHAPE_BYTES = 4 * len(Shape._fields)  # int32
_CODES = {"coo": "int32", "bitmap": "bitmap"}


class Domains(Protocol):
    """Who owns which of a vector's elements, or a table's rows."""

    @property
    def sizes(self) -> Sequence[int]:
        """How many each rank owns: places in its domain are 0 to one less."""

    def split(self, stream: Stream) -> list[Stream]:
        """What falls into each domain, by place in it. Valid until the next split."""

    def flat(self, owner: int, places: Tensor) -> Tensor:
        """Places in an owner's domain as places in the whole, ascending, int32."""


@dataclass(frozen=True, eq=False)
class Stream:
    """A sparse vector of n elements: places, (k,) int32, strictly ascending, and values, (k,).

    Or a table of n rows: then places are rows, and values (k, width).
    listed: places travel as int32 wherever the smallest code is asked for.
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
        """Some of the entries: a mask, (k,) bool, or a slice."""
        return replace(self, places=self.places[chosen], values=self.values[chosen])

    # -- who owns what ---------------------------------------------------------------------

    def split(self, domains: Domains) -> list[Stream]:
        """What each owner has, by place in its domain. Valid until these are used again."""
        return domains.split(self)

    def over(self, domains: Domains, owner: int) -> Stream:
        """The same entries, taken to be an owner's."""
        return replace(self, n=domains.sizes[owner])

    def flat(self, domains: Domains, owner: int) -> Stream:
        """An owner's entries, by place in the whole."""
        whole = sum(domains.sizes)
        return replace(self, places=domains.flat(owner, self.places), n=whole)

    def check_counts(self, domains: Domains, counts: Sequence[int]) -> None:
        """PayloadError unless each domain has so many of the entries."""
        found = [part.count for part in self.split(domains)]
        if found != list(counts):
            raise PayloadError(
                f"of each parameter as many entries are chosen as are sent, {list(counts)}; "
                f"{found} arrived. The message is damaged: run `gradwire doctor`."
            )

    # -- bytes, where the reader knows how many entries there are ----------------------------

    def coded(self) -> Tensor:
        """Values and places, these in the smallest code for their number: (coded_bytes(),) uint8.

        Who knows the number knows the size.
        """
        return self._written(self._code(self.count))

    def coded_bytes(self, count: int | None = None) -> int:
        """How many bytes so many entries take, with values like these; None: as many as here."""
        count = self.count if count is None else count
        return self._written_bytes(self._code(count), count)

    def read(self, message: Tensor, count: int | None = None) -> Stream:
        """A coded stream like this one, of so many entries; PayloadError unless it is one."""
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
        """Values and places, in a code that is smaller where places come in crowds; of none
        nothing. uint8."""
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
        """Of a packed stream of that shape, with values like these."""
        if form != "smallest":
            return self._written_bytes(_CODES[form], shape.entries)
        if shape.entries == 0:
            return 0
        values = shape.entries * self._row_bytes
        return _SHAPE_BYTES + values + kernels.shaped_bytes(self.n, shape)

    def most_packed_bytes(self, domains: Domains | None = None) -> int:
        """No stream over n elements with values like these takes more; domains: nor what any of
        these has."""
        n = self.n if domains is None else max(domains.sizes)
        return _SHAPE_BYTES + n * (4 + self._row_bytes)

    def unpacked(self, message: Tensor, form: Form = "smallest") -> Stream:
        """A packed stream over as many elements, with values like these; PayloadError unless it
        is one."""
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
        """How many bytes a rank says that it will send, which has what this one has."""
        return read_size(message, most)

    def _form(self, form: Form) -> Form:
        return "coo" if self.listed and form == "smallest" else form

    def _count_in(self, message: Tensor, form: Form) -> int:
        """How many entries a message of a form without a shape must have, if it is one."""
        bits = -(-self.n // 8) if form == "bitmap" else 0
        each = self._row_bytes + (4 if form == "coo" else 0)
        return min(max(0, message.numel() - bits) // each, self.n)

    # -- values in bytes ---------------------------------------------------------------------

    @property
    def _row_bytes(self) -> int:
        """Of the values of one entry."""
        width = self.values.shape[1] if self.values.dim() > 1 else 1
        return width * self.values.element_size()

    def _filled(self, head: int, size: int) -> tuple[Tensor, Tensor]:
        """A message with the values behind its head; and its last bytes, so many."""
        values = self.values.contiguous().view(torch.uint8).flatten()
        end = head + values.numel()
        message = torch.empty(end + size, dtype=torch.uint8, device=values.device)
        message[head:end].copy_(values)
        return message, message[end:]

    def _values(self, data: Tensor, count: int) -> Tensor:
        """Sharing memory with the message, where its place allows it."""
        if data.storage_offset() % self.values.element_size():
            data = data.clone()
        return data.view(self.values.dtype).view(count, *self.values.shape[1:])

    def _check_size(self, message: Tensor, count: int, size: int) -> None:
        if message.numel() != size:
            raise PayloadError(
                f"{count} entries of {self.n} take {size} bytes; {message.numel()} arrived. The "
                "message is damaged, or the counts that were exchanged are: run `gradwire doctor`."
            )

    def _like(self, places: Tensor, values: Tensor) -> Stream:
        return Stream(places, values, self.n, self.listed)

    # -- arithmetic --------------------------------------------------------------------------

    def mean_with(self, others: Sequence[Stream], dtype: torch.dtype) -> Stream:
        """This one and others, added up in that order in fp32, divided once by their number.

        Zeros are left out.
        """
        return self._sum([self, *others], float(1 + len(others)), dtype)

    def plus(self, other: Stream) -> Stream:
        """The sum, fp32, the same to the bit whichever comes first. Zeros are left out."""
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
        """The largest entries of the sum, so many of each domain, which are ranges.

        Both have so many of each already.
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
        """The largest entries, so many of each domain, which are ranges and have as many; ties to
        the lower place."""
        chosen, first = [torch.empty(0, dtype=torch.int32, device=self.places.device)], 0
        for part, k in zip(self.split(domains), counts):
            at = torch.empty(k, dtype=torch.int32, device=self.places.device)
            values = torch.empty(k, device=self.places.device)
            kernels.topk(part.values, k, at, values, torch.zeros(1, dtype=torch.int64))
            chosen.append(at + first)
            first += part.count
        every = torch.cat(chosen)
        return self._like(self.places[every], self.values[every])

    def at(self, places: Tensor) -> Tensor:
        """The values at these places, ascending, among which are all of its own: fp32, zeros
        elsewhere."""
        out = torch.zeros(places.numel(), device=places.device)
        out[torch.searchsorted(places, self.places)] = self.values.float()
        return out

    def among(self, other: Stream) -> Tensor:
        """Which entries' places are also among the other's, (k,) bool."""
        found = torch.empty(self.count, dtype=torch.bool, device=self.places.device)
        kernels.contained(self.places, other.places, found)
        return found


def _shape(message: Tensor) -> Shape:
    """What a message begins with; nothing else is looked at."""
    if message.numel() < _SHAPE_BYTES:
        raise PayloadError(
            f"a stream has at least {_SHAPE_BYTES} bytes; {message.numel()} arrived. The message "
            "is damaged: run `gradwire doctor`."
        )
    told = message[:_SHAPE_BYTES].clone().view(torch.int32).tolist()
    if told[0] == 0:
        raise PayloadError(
            f"a stream of no entries has no bytes; {message.numel()} arrived. The message is "
            "damaged: run `gradwire doctor`."
        )
    return Shape(*told)
