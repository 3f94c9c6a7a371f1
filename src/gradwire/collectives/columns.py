"""columns: owners sum stripes of columns. For embeddings: balanced, and pulls need no index."""

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
from gradwire.streams import Stream, from_rank, sealed, sealed_bytes, unsealed, whole
from gradwire.streams.rows import CooRows, check_layouts, table_of


@dataclass(frozen=True)
class Columns(Collective):
    """Rank j owns a stripe of columns of every row, so that all owners have the same work.

        which rows ──► all      stripes ══► owners      average stripes, single rows ══► all
                                rank r's rows  ┌──┬──┬──┐
        the same for every row that several    │0 │1 │2 │
        ranks have, whichever it is            └──┴──┴──┘

    Three moves. Once all ranks know each other's rows, they know the union, and values need no
    index; a row of a single rank goes to all as it is (with two ranks all rows do, in two moves).
    Ranks send the number of their rows and the list in one move, whose size is an estimate from
    the last step's lists; longer lists take a move of their own.
    A row travels whole if anything in it is not zero: made for gradients of embeddings, wasteful
    if zeros lie anywhere (use `zen`). Tensors of one dimension go in rows of 256 elements. Sparse
    gradients (COO) stay sparse: nothing as large as the parameter is allocated.
    Sums in rank order. Memory: the non-zero rows, sent and received.
    Source: the column-wise split of Li et al. 2022, "EmbRace", for replicated tables; that ids
    travel first, and single rows without an owner (as many from each as most ranks have), is ours.
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
            arrived = yield Exchange.to_all(ids, {r: sizes[r] for r in others})
        ctx.memory["room"] = _room(max(sizes))
        job.learn(counts, arrived)
        pushed = {}
        if any(holders.shared_rows.numel() for holders in job.holders):
            pushed = yield Exchange(
                {r: job.push(r) for r in others},
                {r: job.bytes_of(job.push_sizes(r)) for r in others},
            )
        mine = job.pull(pushed)
        arrived = yield Exchange.to_all(mine, {r: job.bytes_of(job.pull_sizes(r)) for r in others})
        job.write({**arrived, ctx.rank: mine})


def _room(size: int) -> int:
    """Returns bytes that the next step's lists will hardly exceed, from this step's longest."""
    return -(-size * 9 // 64) * 8


def _fitted(message: Tensor, room: int) -> Tensor:
    """Returns the message cut or padded with zeros to `room` bytes."""
    out = torch.zeros(room, dtype=torch.uint8, device="cpu")
    out[: message.numel()] = message[:room]
    return out


class _Stripes:
    """The messages to owners and to all ranks, the owner's averages, and the results."""

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
        """The number of non-zero rows of each table on this rank."""
        return [ids.numel() for ids in self._ids]

    @property
    def most(self) -> int:
        """The largest number that a rank may announce."""
        return max(1, *(table.count for table in self._tables))

    @property
    def layouts(self) -> list[int]:
        """For each table, 1 if its gradient is COO on this rank, else 0."""
        return [int(isinstance(table, CooRows)) for table in self._tables]

    def agree(self, heard: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Returns every rank's counts; UsageError on all ranks if gradients differ in layout."""
        tables = len(self._tables)
        check_layouts(self._names, [row[tables:] for row in heard])
        return [row[:tables] for row in heard]

    @property
    def finite(self) -> bool:
        """Whether all gradients are finite. NaN is not zero, so it is in a row that was taken."""
        return all(kernels.is_finite(rows.view(-1)) for rows in self._rows)

    def ids(self) -> Tensor:
        """Returns the coded rows of each table in turn, with a checksum: sizes depend on them."""
        return sealed(torch.cat([ids.coded() for ids in self._lists]))

    def ids_bytes(self, counts: Sequence[int]) -> int:
        """Returns the bytes of `ids` on a rank with so many rows of each table."""
        return sealed_bytes(sum(self._sizes_of_ids(counts)))

    def _sizes_of_ids(self, counts: Sequence[int]) -> list[int]:
        return [ids.coded_bytes(k) for ids, k in zip(self._lists, counts)]

    def learn(self, counts: Sequence[Sequence[int]], arrived: Mapping[int, Tensor]) -> None:
        """Read which rank holds which rows; PayloadError if the ids are damaged."""
        lists = {
            r: from_rank(r, self._read_ids, r, counts[r], message)
            for r, message in arrived.items()
        }
        lists[self._me] = self._ids
        tables = range(len(self._tables))
        self.holders = [Holders([lists[r][t] for r in range(self._world)]) for t in tables]

    def _read_ids(self, rank: int, counts: Sequence[int], message: Tensor) -> list[Tensor]:
        sizes = self._sizes_of_ids(counts)
        parts = torch.split(unsealed(message, sum(sizes), [rank]), sizes)
        work = zip(self._lists, parts, counts)
        return [own.read(part, k).places for own, part, k in work]

    # -- rows --------------------------------------------------------------------------------

    def _width(self, t: int, owner: int) -> int:
        return self._bounds[t][owner + 1] - self._bounds[t][owner]

    def _own(self, t: int, owner: int) -> Tensor:
        """Returns an owner's columns of the rows that this rank shares with others, (k, width)."""
        at, bounds = self.holders[t].shared_at[self._me], self._bounds[t][owner : owner + 2]
        out = self._rows[t].new_empty(at.numel(), self._width(t, owner))
        kernels.gather_stripes(self._rows[t], at, bounds, out.view(-1))
        return out

    def push(self, owner: int) -> Tensor:
        """Returns the message to an owner: its columns, table after table."""
        stripes = [self._own(t, owner).view(-1) for t in range(len(self._tables))]
        return torch.cat(stripes).view(torch.uint8)

    def push_sizes(self, rank: int) -> list[int]:
        """Returns how many values of each table that rank sends to this one."""
        work = enumerate(self.holders)
        return [h.shared_at[rank].numel() * self._width(t, self._me) for t, h in work]

    def pull(self, arrived: Mapping[int, Tensor]) -> Tensor:
        """Returns this rank's message to all: its single rows, then its stripes of averages."""
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
        """Returns how many values that rank sends to all: single rows by table, then stripes."""
        singles = [h.single_at[rank].numel() * t.width for h, t in zip(self.holders, self._tables)]
        work = enumerate(self.holders)
        return singles + [h.shared_rows.numel() * self._width(t, rank) for t, h in work]

    def bytes_of(self, sizes: Sequence[int]) -> int:
        """Returns the bytes of so many values."""
        return self._dtype.itemsize * sum(sizes)

    def _read(self, message: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        numbers = whole(message, self.bytes_of(sizes)).view(self._dtype)
        return torch.split(numbers, list(sizes))

    # -- results -----------------------------------------------------------------------------

    def write(self, messages: Mapping[int, Tensor]) -> None:
        """Write every rank's single rows and stripes into the results."""
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
    """Returns flat values as rows. A view with -1 could not infer how many, without columns."""
    return flat.view(ids.numel(), width)
