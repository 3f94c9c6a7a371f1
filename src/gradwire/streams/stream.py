"""Sparse vectors as values: cut among owners, written as bytes and read, added up, compared.

Nothing here knows of buckets, steps or ranks. `planner.expected` has streams of which only the
numbers are known, so that prices come from the very rounds that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.streams import coding
from gradwire.streams.coding import Form
from gradwire.streams.told import read_size


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
        return coding.coded(self.n, self.places, self.values, self._code(self.count))

    def coded_bytes(self, count: int | None = None) -> int:
        """How many bytes so many entries take, with values like these; None: as many as here."""
        count = self.count if count is None else count
        places = kernels.code_bytes(self._code(count), self.n, count)
        return count * coding.row_bytes(self.values) + places

    def read(self, message: Tensor, count: int | None = None) -> Stream:
        """A coded stream like this one, of so many entries; PayloadError unless it is one."""
        count = self.count if count is None else count
        code = self._code(count)
        return self._like(*coding.read(self.n, count, self.values, message, code))

    def _code(self, count: int) -> str:
        return "int32" if self.listed else kernels.smallest(self.n, count)

    # -- bytes that say themselves how many entries there are --------------------------------

    def packed(self, form: Form = "smallest") -> Tensor:
        """Values and places, in a code that is smaller where places come in crowds. uint8."""
        return coding.packed(self.n, self.places, self.values, self._form(form))

    def most_packed_bytes(self, domains: Domains | None = None) -> int:
        """No stream over n elements with values like these takes more; domains: nor what any of
        these has."""
        n = self.n if domains is None else max(domains.sizes)
        return coding.SHAPE_BYTES + n * (4 + coding.row_bytes(self.values))

    def unpacked(self, message: Tensor, form: Form = "smallest") -> Stream:
        """A packed stream over as many elements, with values like these; PayloadError unless it
        is one."""
        form = self._form(form)
        return self._like(*coding.unpacked(self.n, self.values, message, form))

    def read_size(self, message: Tensor, most: int) -> int:
        """How many bytes a rank says that it will send, which has what this one has."""
        return read_size(message, most)

    def _form(self, form: Form) -> Form:
        return "coo" if self.listed and form == "smallest" else form

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

    def among(self, other: Stream) -> Tensor:
        """Which entries' places are also among the other's, (k,) bool."""
        found = torch.empty(self.count, dtype=torch.bool, device=self.places.device)
        kernels.contained(self.places, other.places, found)
        return found
