"""Tables of rows, summed inside machines first: every rank owns some rows of its machine's mean.

my rows   ─ push ─► (the machine) ─► mean of the rows that I own
                      any collective that takes rows: (across machines)
my result ◄─ pull ─ (the machine) ◄─ mean of these over all machines

One table of all the bucket's rows crosses. With it go empty tables, one for each table of the
bucket, in the layout of its gradient, as layouts are compared. If a machine was not well, a row of
NaN crosses instead, so that all are notified.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError
from gradwire.groups import Machines
from gradwire.moves import over
from gradwire.runtime.codec import Codec, Outcome
from gradwire.runtime.context import BucketContext
from gradwire.runtime.row_streams import RowStreams
from gradwire.strategy import Collective, Rounds, State, Strategy
from gradwire.streams import Rows, Stream
from gradwire.streams.owners import pull, push
from gradwire.streams.rows import CooRows


class MachineRows:
    """The local work on one bucket of one rank, step after step. options: for its contexts."""

    def __init__(
        self, codec: Codec, machines: Machines, across: Collective, **options: Any
    ) -> None:
        self.is_own = True  # there are none
        self._codec, self.kept, options = codec, codec.bucket, {**options, "seed": codec.seed}
        self._node, self._cross = machines.node(codec.rank), machines.cross(codec.rank)
        self._me, compressor = self._node.ranks.index(codec.rank), codec.strategy.compressor
        self._inside = BucketContext(
            codec.strategy, codec.bucket, self._me, machines.per_node, {}, **options
        )
        inside = self._inside.streams
        assert isinstance(inside, RowStreams), "asked of tables of rows only"
        self._streams, dtype, width = inside, codec.bucket.dtype, inside.width
        whole = Parameter("all rows", (inside.size, width), dtype, sparse=True)
        empty = (Parameter(name, (1, width), dtype, sparse=True) for name in codec.bucket.names)
        ranks = self._cross.ranks
        self._crossing = BucketContext(
            Strategy(compressor, across), Bucket((whole, *empty)), ranks.index(codec.rank),
            len(ranks), {}, **options,
        )  # fmt: skip
        self._domains = Rows(inside.size, machines.per_node, codec.seed)

    def begin(self) -> None:
        """Begins a new step."""
        self._at_work: list[BucketContext] = []

    def rounds(self) -> Rounds[None]:
        """Yields the moves: inside the machine, across machines, and inside again."""
        codec, inside, domains = self._codec, self._inside, self._domains
        self._at_work = [inside]
        inside.begin(codec.gradients, codec.results, codec.info)
        streams = self._streams
        mean = yield from over(self._node, push(inside, streams.entries(), domains))
        damage, streams.damage = streams.damage, None
        own = mean if damage is None else None
        try:
            own = yield from self._cross_over(own)
        except PayloadError as error:
            own, damage = None, damage or error
        streams.damage = damage  # `pull` notifies the machine of it before this rank stops
        told = self._none if own is None else own
        fine = own is not None
        means = yield from over(self._node, pull(inside, told, domains, finite=fine))
        if means is not None:
            streams.write(means)
        codec.verdict.join(inside.codec.verdict, "")

    def _cross_over(self, own: Stream | None) -> Rounds[Stream | None]:
        """Returns the mean over all machines of the rows that this rank owns, by place in its
        domain; None if the step does not count."""
        crossing, domains, me = self._crossing, self._domains, self._me
        given = self._tables(None if own is None else own.flat(domains, me))
        into = [kernels.no_rows(x) if x.is_sparse else torch.empty_like(x) for x in given]
        self._at_work.append(crossing)
        crossing.begin(given, into, self._codec.info._replace(clip_scale=1.0))  # clipped already
        try:
            yield from over(self._cross, crossing.rounds())
            fine = crossing.finite
        except PayloadError as error:
            ranks = ", ".join(map(str, self._cross.ranks))
            raise PayloadError(
                f"across machines, among ranks {ranks}, which are numbered from 0 here: {error}"
            ) from error
        if own is None or not fine:
            return None
        ids, rows = kernels.rows_of(into[0], into[0].dtype)
        return Stream(ids.cpu(), rows.cpu(), self._streams.size).split(domains)[me]

    def _tables(self, own: Stream | None) -> list[Tensor]:
        """Returns the tables that cross, as gradients: rows by place in the whole, or a row of NaN
        if own is None; and empty ones."""
        whole, *_ = self._crossing.bucket.parameters
        dtype: torch.dtype = getattr(torch, whole.dtype)
        if own is None:
            rows = torch.full(
                (min(1, whole.shape[0]), whole.shape[1]), math.nan, dtype=dtype, device="cpu"
            )
            own = Stream(
                torch.arange(len(rows), dtype=torch.int32, device="cpu"), rows, whole.shape[0]
            )
        device = self._codec.device
        made = [kernels.as_rows(own.places.long().to(device), own.values.to(device), whole.shape)]
        empty = torch.zeros(1, whole.shape[1], dtype=dtype, device=device)
        for table in self._streams.tables:
            is_sparse = isinstance(table, CooRows)
            made.append(kernels.no_rows(empty) if is_sparse else empty.view(-1))
        return made

    @cached_property
    def _none(self) -> Stream:
        """A stream with none of the rows that this rank owns."""
        streams = self._streams
        rows = torch.empty(0, streams.width, dtype=streams.mean_dtype, device="cpu")
        nothing = Stream(torch.empty(0, dtype=torch.int32, device="cpu"), rows, streams.size)
        return nothing.split(self._domains)[self._me]

    def leftover(self, i: int, n: int, state: State) -> Tensor | None:
        """Returns None: rows are sent uncompressed, without a residual."""
        return None

    def undo(self) -> None:
        """Does nothing: there is no state to undo."""

    def abandon(self) -> None:
        """Gives up a step that has failed."""
        for context in self._at_work:
            context.abandon()

    def end(self, outcome: Outcome) -> None:
        """Ends the step, after all its buckets."""
        for context in self._at_work:
            context.end(skipped=outcome != "kept")
