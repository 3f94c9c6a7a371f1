"""columns: whole rows, cut in columns among owners. For embeddings: index-free pull, balance 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._holders import Holders
from gradwire.local import Local
from gradwire.moves import Exchange
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Stream, sealed, sealed_bytes, unsealed, whole
from gradwire.streams.rows import CooRows, check_layouts, table_of


@dataclass(frozen=True)
class Columns(Collective):
    """Rank j owns a stripe of columns of every row, so that every owner has as much to do.

        which rows ──► all      stripes ══► owners      average stripes, single rows ══► all
                                rank r's rows  ┌──┬──┬──┐
        the same for every row that several    │0 │1 │2 │
        ranks have, whichever it is            └──┴──┴──┘

    Three moves. Once all know everybody's rows, they know the union, and nothing else needs an
    index; a row that one rank has goes to all as it is (of two ranks every row does, in two
    moves). Ranks tell how many rows they have and which in one move, of as many bytes as the last
    step's lists lead to expect; lists that are longer take a move of their own.
    A row travels whole if anything in it is not zero: made for gradients of embeddings, wasteful
    where zeros lie anywhere (`zen`). Tensors of one dimension go in rows of 256 elements. Sparse
    gradients (COO) come and go as such: nothing as large as the parameter is made.
    Sums in rank order. Memory: the non-zero rows, sent and received.
    Source: the column-wise split of Li et al. 2022, "EmbRace", for replicated tables; ours is that
    ids travel first, and single rows without an owner: as many from each as most ranks have.
    """

    name: ClassVar[str] = "columns"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("exact",)
    own_feedback: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    partner: ClassVar[str] = "nonzero"

    def rounds(self, ctx: Context) -> Rounds[None]:
        others = [r for r in range(ctx.world) if r != ctx.rank]
        job = _Stripes(ctx.locals(), ctx.rank, ctx.world)
        ids, room = job.ids(), ctx.memory.get("room", 0)
        heard = yield from ctx.streams.tell(
            *job.counts, *job.layouts, most=job.most, finite=job.finite, luggage=_fitted(ids, room)
        )
        if heard is None:
            return
        counts = job.agree(heard)
        sizes = [job.ids_bytes(of_rank) for of_rank in counts]
        arrived = {r: ctx.streams.luggage[r, : sizes[r]] for r in others}
        if max(sizes) > room:
            arrived = yield Exchange(dict.fromkeys(others, ids), {r: sizes[r] for r in others})
        ctx.memory["room"] = _room(max(sizes))
        job.learn(counts, arrived)
        pushed = {}
        if any(holders.shared_rows.numel() for holders in job.holders):
            pushed = yield Exchange(
                {r: job.push(r) for r in others},
                {r: job.bytes_of(job.push_sizes(r)) for r in others},
            )
        mine = job.pull(pushed)
        arrived = yield Exchange(
            dict.fromkeys(others, mine), {r: job.bytes_of(job.pull_sizes(r)) for r in others}
        )
        job.write({**arrived, ctx.rank: mine})


def _room(size: int) -> int:
    """Bytes that lists of the next step will hardly exceed, where this one's longest has these."""
    return -(-size * 9 // 64) * 8


def _fitted(message: Tensor, room: int) -> Tensor:
    """As much of it as there is room for, and zeros."""
    out = torch.zeros(room, dtype=torch.uint8)
    out[: message.numel()] = message[:room]
    return out


class _Stripes:
    """What goes to an owner and to all, what an owner makes of it, and where it belongs."""

    def __init__(self, locals_: Sequence[Local], me: int, world: int) -> None:
        self._me, self._world = me, world
        self._names = [local.name for local in locals_]
        self._tables = tables = [table_of(local) for local in locals_]
        self._bounds = [[r * t.width // world for r in range(world + 1)] for t in tables]
        self._ids = [table.nonzero() for table in tables]
        self._rows = [table.take(ids) for table, ids in zip(tables, self._ids)]
        own = zip(self._ids, tables)
        self._lists = [Stream(ids, ids.new_empty(ids.numel(), 0), t.count) for ids, t in own]
        self._dtype = tables[0].dtype
        self.holders: list[Holders] = []

    # -- which rows --------------------------------------------------------------------------

    @property
    def counts(self) -> list[int]:
        """Rows of each table that hold anything here."""
        return [ids.numel() for ids in self._ids]

    @property
    def most(self) -> int:
        """No number that is announced is larger."""
        return max(1, *(table.count for table in self._tables))

    @property
    def layouts(self) -> list[int]:
        """1 of each table whose gradient is COO here, else 0."""
        return [int(isinstance(table, CooRows)) for table in self._tables]

    def agree(self, heard: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Every rank's counts; UsageError, on all ranks, where gradients differ in layout."""
        tables = len(self._tables)
        check_layouts(self._names, [row[tables:] for row in heard])
        return [row[:tables] for row in heard]

    @property
    def finite(self) -> bool:
        """NaN is not zero, so every one is in a row that was taken."""
        return all(kernels.is_finite(rows.view(-1)) for rows in self._rows)

    def ids(self) -> Tensor:
        """Which rows of each table, coded, one after the other, sealed: sizes depend on them."""
        return sealed(torch.cat([ids.coded() for ids in self._lists]))

    def ids_bytes(self, counts: Sequence[int]) -> int:
        """How many bytes a rank with so many rows of each table sends."""
        return sealed_bytes(sum(self._sizes_of_ids(counts)))

    def _sizes_of_ids(self, counts: Sequence[int]) -> list[int]:
        return [ids.coded_bytes(k) for ids, k in zip(self._lists, counts)]

    def learn(self, counts: Sequence[Sequence[int]], arrived: Mapping[int, Tensor]) -> None:
        """Who holds what; PayloadError if ids are not what was sent."""
        lists = {r: self._read_ids(counts[r], message) for r, message in arrived.items()}
        lists[self._me] = self._ids
        tables = range(len(self._tables))
        self.holders = [Holders([lists[r][t] for r in range(self._world)]) for t in tables]

    def _read_ids(self, counts: Sequence[int], message: Tensor) -> list[Tensor]:
        sizes = self._sizes_of_ids(counts)
        parts = torch.split(unsealed(message, sum(sizes)), sizes)
        work = zip(self._lists, parts, counts)
        return [own.read(part, k).places for own, part, k in work]

    # -- rows --------------------------------------------------------------------------------

    def _width(self, t: int, owner: int) -> int:
        return self._bounds[t][owner + 1] - self._bounds[t][owner]

    def _own(self, t: int, owner: int) -> Tensor:
        """An owner's columns of what this rank shares with others, (k, width)."""
        at, bounds = self.holders[t].shared_at[self._me], self._bounds[t][owner : owner + 2]
        out = self._rows[t].new_empty(at.numel(), self._width(t, owner))
        kernels.gather_stripes(self._rows[t], at, bounds, out.view(-1))
        return out

    def push(self, owner: int) -> Tensor:
        """The owner's columns, table after table."""
        stripes = [self._own(t, owner).view(-1) for t in range(len(self._tables))]
        return torch.cat(stripes).view(torch.uint8)

    def push_sizes(self, rank: int) -> list[int]:
        """How many numbers of each table that rank sends to this one."""
        work = enumerate(self.holders)
        return [h.shared_at[rank].numel() * self._width(t, self._me) for t, h in work]

    def pull(self, arrived: Mapping[int, Tensor]) -> Tensor:
        """What all get of this rank: the rows that it alone has, its stripes of the averages."""
        singles = [self._single(t) for t in range(len(self._tables))]
        given = {r: self._read(message, self.push_sizes(r)) for r, message in arrived.items()}
        stripes = [self._average(t, given) for t in range(len(self._tables))]
        return torch.cat(singles + stripes).view(torch.uint8)

    def _single(self, t: int) -> Tensor:
        at, width = self.holders[t].single_at[self._me], self._tables[t].width
        out = self._rows[t].new_empty(at.numel() * width)
        kernels.gather_stripes(self._rows[t], at, (0, width), out)
        return out

    def _average(self, t: int, given: Mapping[int, Sequence[Tensor]]) -> Tensor:
        holders, width = self.holders[t], self._width(t, self._me)
        if not holders.shared_rows.numel():
            return self._rows[t].new_empty(0)
        ids = [holders.shared_of(r) for r in range(self._world)]
        parts = [
            self._own(t, self._me) if r == self._me else _as_rows(given[r][t], ids[r], width)
            for r in range(self._world)
        ]
        return kernels.sum_rows(ids, parts, float(self._world), self._dtype)[1].view(-1)

    def pull_sizes(self, rank: int) -> list[int]:
        """How many numbers all get of that rank: of each table single rows, then stripes."""
        singles = [h.single_at[rank].numel() * t.width for h, t in zip(self.holders, self._tables)]
        work = enumerate(self.holders)
        return singles + [h.shared_rows.numel() * self._width(t, rank) for t, h in work]

    def bytes_of(self, sizes: Sequence[int]) -> int:
        """How many bytes so many numbers take."""
        return self._dtype.itemsize * sum(sizes)

    def _read(self, message: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        numbers = whole(message, self.bytes_of(sizes)).view(self._dtype)
        return torch.split(numbers, list(sizes))

    # -- results -----------------------------------------------------------------------------

    def write(self, messages: Mapping[int, Tensor]) -> None:
        """Every rank's single rows and stripes into the results."""
        parts = [self._read(messages[r], self.pull_sizes(r)) for r in range(self._world)]
        for t, (table, holders) in enumerate(zip(self._tables, self.holders)):
            table.expect(holders.union)
            ids = [holders.single_of(r) for r in range(self._world)]
            rows = [_as_rows(part[t], own, table.width) for part, own in zip(parts, ids)]
            _, singles = kernels.sum_rows(ids, rows, float(self._world), self._dtype)
            table.put(singles, (0, table.width), holders.single_rows)
            stripes = torch.cat([part[len(self._tables) + t] for part in parts])
            table.put(stripes, self._bounds[t], holders.shared_rows)
            table.finish()


def _as_rows(flat: Tensor, ids: Tensor, width: int) -> Tensor:
    """A stripe may have no columns, so a view cannot guess how many rows there are."""
    return flat.view(ids.numel(), width)
