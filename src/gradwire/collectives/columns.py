"""columns: whole rows, cut in columns among owners. For embeddings: index-free pull, balance 1."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._coo_rows import CooRows
from gradwire.collectives._rows import Rows
from gradwire.local import Local, Streams
from gradwire.moves import Exchange, Move
from gradwire.strategy import Collective, Context


@dataclass(frozen=True)
class Columns(Collective):
    """Rank j owns a stripe of columns of every row, so that every owner has as much to do.

        which rows ══► all,  stripes ══► owners      average stripes ══► all
        rank r's rows  ┌──┬──┬──┐
                       │0 │1 │2 │    the same for every row, whichever it is
                       └──┴──┴──┘

    Once all know everybody's rows, they know the union, and averages travel without an index.
    A row travels whole if anything in it is not zero: made for gradients of embeddings, wasteful
    where zeros lie anywhere (`zen`). Tensors of one dimension go in rows of 256 elements. Sparse
    gradients (COO) come and go as such: nothing as large as the parameter is made.
    Sums in rank order. Memory: the non-zero rows, sent and received.
    Source: the column-wise split of Li et al. 2022, "EmbRace", for replicated tables.
    """

    name: ClassVar[str] = "columns"
    needs: ClassVar[tuple[str, ...]] = ("exact",)
    own_feedback: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    partner: ClassVar[str] = "nonzero"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        work, me, world = ctx.streams(), ctx.rank, ctx.world
        others = [r for r in range(world) if r != me]
        stripes = _Stripes(work, [_table(local) for local in ctx.locals()], me, world)
        counts = work.heard((yield work.announce(*stripes.counts, finite=stripes.finite)))
        if counts is None:
            return
        arrived = yield Exchange(
            {r: stripes.message(r) for r in others},
            {r: stripes.message_bytes(counts[r], me) for r in others},
        )
        own = stripes.average(counts, arrived)
        if work.heard((yield work.announce())) is None:
            return
        arrived = yield Exchange(
            dict.fromkeys(others, own), {r: stripes.union_bytes(r) for r in others}
        )
        stripes.write({**arrived, me: own})


def _table(local: Local) -> Rows | CooRows:
    return CooRows(local) if kernels.is_rows(local.gradient) else Rows(local)


class _Stripes:
    """What goes to an owner, what it makes of it, and where its answer belongs."""

    def __init__(
        self, work: Streams, tables: Sequence[Rows | CooRows], me: int, world: int
    ) -> None:
        self._work, self._tables, self._me, self._world = work, tables, me, world
        self._bounds = [[r * t.width // world for r in range(world + 1)] for t in tables]
        self._ids = [table.nonzero() for table in tables]
        self._taken = [t.take(i, b) for t, i, b in zip(tables, self._ids, self._bounds)]
        self._places = [work.coded_places(t.count, i) for t, i in zip(tables, self._ids)]
        self._dtype, self._item_bytes = tables[0].dtype, tables[0].dtype.itemsize
        self._unions: list[Tensor] = []

    @property
    def counts(self) -> list[int]:
        """Rows of each table that hold anything here."""
        return [ids.numel() for ids in self._ids]

    @property
    def finite(self) -> bool:
        """NaN is not zero, so every one is in a row that was taken."""
        return all(kernels.is_finite(taken) for taken in self._taken)

    def _width(self, t: int, owner: int) -> int:
        return self._bounds[t][owner + 1] - self._bounds[t][owner]

    def _own(self, t: int, owner: int) -> Tensor:
        """An owner's columns of this rank's rows, (k, width)."""
        k, first = self._ids[t].numel(), self._bounds[t][owner]
        part = self._taken[t][k * first : k * self._bounds[t][owner + 1]]
        return part.view(k, self._width(t, owner))

    def message(self, owner: int) -> Tensor:
        """The owner's columns, table after table, then which rows they are of, coded."""
        stripes = [self._own(t, owner).reshape(-1) for t in range(len(self._tables))]
        return torch.cat([torch.cat(stripes).view(torch.uint8), *self._places])

    def message_bytes(self, counts: Sequence[int], owner: int) -> int:
        """How many bytes a rank with so many rows of each table sends to that owner."""
        coded = (self._work.coded_places_bytes(t.count, k) for t, k in zip(self._tables, counts))
        return self._item_bytes * sum(self._sizes(counts, owner)) + sum(coded)

    def _sizes(self, counts: Sequence[int], owner: int) -> list[int]:
        """Elements of an owner's stripe of so many rows, table by table."""
        return [k * self._width(t, owner) for t, k in enumerate(counts)]

    def average(self, counts: Sequence[Sequence[int]], arrived: dict[int, Tensor]) -> Tensor:
        """This rank's stripes of the averages; every union is known now."""
        tables = range(len(self._tables))
        with self._work.damage_is_told():
            given = {r: self._read(counts[r], message) for r, message in arrived.items()}
            given[self._me] = [(self._ids[t], self._own(t, self._me)) for t in tables]
            means = []
            for t in tables:
                ids, rows = zip(*(given[r][t] for r in range(self._world)))
                union, mean = kernels.sum_rows(ids, rows, float(self._world), self._dtype)
                self._unions.append(union)
                means.append(mean.view(-1))
            return torch.cat(means).view(torch.uint8)
        return torch.empty(0, dtype=torch.uint8)

    def _read(self, counts: Sequence[int], message: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each table, which rows, and this rank's columns of them."""
        self._work.whole(message, self.message_bytes(counts, self._me))
        sizes = self._sizes(counts, self._me)
        at = self._item_bytes * sum(sizes)
        stripes = torch.split(message[:at].view(self._dtype), sizes)
        parts = []
        for t, (table, k, stripe) in enumerate(zip(self._tables, counts, stripes)):
            end = at + self._work.coded_places_bytes(table.count, k)
            ids = self._work.read_places(table.count, k, message[at:end])
            parts.append((ids, stripe.view(k, self._width(t, self._me))))
            at = end
        return parts

    def union_bytes(self, owner: int) -> int:
        """How many bytes an owner's averages take."""
        unions = [union.numel() for union in self._unions]
        return self._item_bytes * sum(self._sizes(unions, owner))

    def write(self, messages: dict[int, Tensor]) -> None:
        """Every owner's averages into the results."""
        for owner, message in messages.items():
            self._work.whole(message, self.union_bytes(owner))
        unions = [union.numel() for union in self._unions]
        for table, union in zip(self._tables, self._unions):
            table.expect(union)
        for owner, message in messages.items():
            stripes = torch.split(message.view(self._dtype), self._sizes(unions, owner))
            for table, bounds, stripe in zip(self._tables, self._bounds, stripes):
                table.put(bounds[owner : owner + 2], stripe)
        for table in self._tables:
            table.finish()
