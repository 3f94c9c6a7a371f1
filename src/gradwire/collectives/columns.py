"""columns: whole rows, cut in columns among owners. For embeddings: index-free pull, balance 1."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._rows import Rows
from gradwire.local import Streams
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
    where zeros lie anywhere (`zen`). Tensors of one dimension go in rows of 256 elements.
    Sums in rank order. Memory: the non-zero rows, sent and received.
    Source: the column-wise split of Li et al. 2022, "EmbRace", for replicated tables.
    """

    name: ClassVar[str] = "columns"
    needs: ClassVar[tuple[str, ...]] = ("entries", "exact")
    own_feedback: ClassVar[bool] = True
    partner: ClassVar[str] = "nonzero"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        work, me, world = ctx.streams(), ctx.rank, ctx.world
        others = [r for r in range(world) if r != me]
        tables = [Rows(local) for local in ctx.locals()]
        finite = all(kernels.is_finite(table.local.gradient) for table in tables)
        ids = [table.nonzero() for table in tables] if finite else []
        counts = work.heard((yield work.announce(*(len(i) for i in ids or tables), finite=finite)))
        if counts is None:
            return
        stripes = _Stripes(work, tables, me, world)
        arrived = yield Exchange(
            {r: stripes.message(ids, r) for r in others},
            {r: stripes.message_bytes(counts[r], me) for r in others},
        )
        own = stripes.average(ids, counts, arrived)
        if work.heard((yield work.announce())) is None:
            return
        arrived = yield Exchange(
            dict.fromkeys(others, own), {r: stripes.union_bytes(r) for r in others}
        )
        stripes.write({**arrived, me: own})


class _Stripes:
    """What goes to an owner, what it makes of it, and where its answer belongs."""

    def __init__(self, work: Streams, tables: Sequence[Rows], me: int, world: int) -> None:
        self._work, self._tables, self._me, self._world = work, tables, me, world

    def _columns(self, table: Rows, owner: int) -> slice:
        first, last = (r * table.width // self._world for r in (owner, owner + 1))
        return slice(first, last)

    def message(self, ids: Sequence[Tensor], owner: int) -> Tensor:
        """Which rows, coded, and the owner's columns of them, table after table."""
        return torch.cat([
            part
            for table, own in zip(self._tables, ids)
            for part in (
                self._work.coded_places(table.count, own),
                table.take(own, self._columns(table, owner)).view(-1).view(torch.uint8),
            )
        ])  # fmt: skip

    def message_bytes(self, counts: Sequence[int], owner: int) -> int:
        """How many bytes a rank with so many rows of each table sends to that owner."""
        return sum(sum(self._sizes(t, k, owner)) for t, k in zip(self._tables, counts))

    def _sizes(self, table: Rows, k: int, owner: int) -> tuple[int, int]:
        columns = self._columns(table, owner)
        places = self._work.coded_places_bytes(table.count, k)
        return places, k * (columns.stop - columns.start) * table.item_bytes

    def average(
        self, ids: Sequence[Tensor], counts: Sequence[Sequence[int]], arrived: dict[int, Tensor]
    ) -> Tensor:
        """This rank's stripes of the averages; every union is known now. Damage is remembered."""
        with self._work.damage_is_told():
            parts = {r: self._parts(counts[r], message) for r, message in arrived.items()}
            parts[self._me] = [
                (own, table.take(own, self._columns(table, self._me)))
                for table, own in zip(self._tables, ids)
            ]
            in_order = [parts[r] for r in range(self._world)]
            self._unions, means = [], []
            for table, given in zip(self._tables, zip(*in_order)):
                own_ids, rows = zip(*given)
                union, mean = kernels.merge_rows(own_ids, rows, float(self._world), table.dtype)
                self._unions.append(union)
                means.append(mean.view(-1).view(torch.uint8))
            return torch.cat(means)
        return torch.empty(0, dtype=torch.uint8)

    def _parts(self, counts: Sequence[int], message: Tensor) -> list[tuple[Tensor, Tensor]]:
        at, parts = 0, []
        self._work.whole(message, self.message_bytes(counts, self._me))
        for table, k in zip(self._tables, counts):
            places, values = self._sizes(table, k, self._me)
            ids = self._work.read_places(table.count, k, message[at : at + places])
            rows = message[at + places : at + places + values].clone().view(table.dtype)
            columns = self._columns(table, self._me)
            parts.append((ids, rows.view(k, columns.stop - columns.start)))
            at += places + values
        return parts

    def union_bytes(self, owner: int) -> int:
        """How many bytes an owner's averages take."""
        return sum(
            len(union) * (c.stop - c.start) * table.item_bytes
            for table, union in zip(self._tables, self._unions)
            for c in [self._columns(table, owner)]
        )

    def write(self, messages: dict[int, Tensor]) -> None:
        at = dict.fromkeys(messages, 0)
        for owner, message in messages.items():
            self._work.whole(message, self.union_bytes(owner))
        for table, union in zip(self._tables, self._unions):
            table.clear()
            for owner, message in messages.items():
                columns = self._columns(table, owner)
                size = len(union) * (columns.stop - columns.start) * table.item_bytes
                stripe = message[at[owner] : at[owner] + size].clone().view(table.dtype)
                table.put(union, columns, stripe)
                at[owner] += size
            table.finish()
