"""Local work on sizes instead of data: pricing runs a collective's `rounds` with it.

Tensors are torch's "meta" tensors, which have a size and no memory. Offsets and bytes come from
`layout`, as in the runtime; every piece of local work is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.errors import PlanError
from gradwire.groups import Machines
from gradwire.layout.machine_sums import MachineSums
from gradwire.layout.message import HEADER_BYTES, Layout
from gradwire.layout.shards import ShardLayout
from gradwire.layout.stages import StageLayout
from gradwire.layout.walk import Walk, elements, split
from gradwire.local import Local
from gradwire.member import padded
from gradwire.moves import AllToAll
from gradwire.planner.expected import Crowd, ExpectedStreams, SizedBucket
from gradwire.planner.priced import Step, Work, WorkKind
from gradwire.strategy import Collective, Compressor, Context, Rounds, State, Strategy
from gradwire.streams.told import told_length

_META = torch.device("meta")
_RAGGED_HEAD = 16


class SizedContext(SizedBucket, Context):
    """The local work of one rank. machines: of the ranks, for strategies that need them."""

    seed, step = 0, 0

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, steps: list[Step],
        crowd: Crowd, machines: Machines | None = None,
    ) -> None:  # fmt: skip
        super().__init__(strategy, bucket, world, steps, crowd)
        self.rank, self._machines, claims = rank, machines, self.claims
        self.is_exact = strategy.feedback is None and all(claim.exact for claim in claims)
        self.layout = Layout.of(claims)
        self._shards: ShardLayout | None = None
        self._uses = 1
        values = [claim.sections[-1][0] for claim in claims]
        value = getattr(torch, values[0]) if not self.ragged and values else torch.float32
        self.streams = ExpectedStreams(self, value, any(claim.listed for claim in claims))
        self.memory: dict[str, Any] = {}

    def copies(self) -> None:
        """Records that all parameters are copied once between the device and the host's memory."""
        self.steps += [Work("copy", n) for n in self.bucket.sizes]

    def accumulates(self, n: int, contributions: int, device: str = "") -> None:
        """Records that so many payloads of n elements are added up."""
        kind: WorkKind = "accumulate" if contributions > 1 else "decode"
        entries = self.entries_of(n)
        self.steps.append(Work(kind, n, contributions, entries, device or self.device))

    def message(self) -> Tensor:
        self.encodes_all()
        size = self.layout.bytes
        if self.ragged:
            size = HEADER_BYTES + sum(map(self._ragged_bytes, self.bucket.sizes))
        # A real tensor: its value is read.
        self.length = torch.tensor(told_length(size), dtype=torch.int64)
        return _bytes(size)

    def _ragged_bytes(self, n: int) -> int:
        """Returns the bytes of one payload of expected length: its compressor's own figure, or the
        size that `threshold` and `nonzero` write."""
        usual = self.strategy.compressor.claims(n, self.bucket.dtype).usual
        if usual is not None:
            return padded(usual)
        k = self.entries_of(n)
        places = kernels.code_bytes(kernels.smallest(n, k), n, k)
        value = int(getattr(torch, self.bucket.dtype).itemsize) if self.is_exact else 4
        return padded(_RAGGED_HEAD + padded(places) + k * value)

    def numbers(self) -> Tensor:
        self.encodes_all()
        return self.layout.numbers(_bytes(self.layout.bytes))

    def accumulate(self, messages: Tensor) -> None:
        for n in self.bucket.sizes:
            self.accumulates(n, self.world)

    def divide(self, total: Tensor) -> None:
        for n in self.bucket.sizes:
            self.accumulates(n, 1)

    def scatter(self, means: Compressor | None = None) -> AllToAll:
        self._shards = ShardLayout.of(
            self.strategy.compressor, self.bucket, self.world, means=means
        )
        self.encodes_all()
        return self._shards.outgoing(_bytes(sum(self._shards.sizes)), self.rank)

    def reduce(self, arrived: Tensor) -> Tensor:
        assert self._shards is not None, "reduce comes after scatter"
        for pieces in self._shards.pieces:
            begin, end = pieces.of_owner(self.rank)
            self.accumulates(end - begin, self.world)
            self.encodes(end - begin)
        return _bytes(self._shards.answer_bytes)

    def collect(self, messages: Tensor) -> None:
        self.divide(messages)

    def through_machines(self, outer: Collective) -> Rounds[None]:
        assert self._machines is not None, "asked where machines are known"
        if self._machines.per_node == 1:
            return super().through_machines(outer)
        return SizedMachineSums(self, self._machines, outer).rounds()

    def along_path(self) -> Rounds[None]:
        path = self.strategy.collective.tasks
        assert path is not None, "asked of paths only"
        compressor = self.strategy.compressor
        plan = StageLayout(path, self.bucket, self.world, compressor, self._machines)
        return SizedStages(self, plan).rounds()

    def room(self, name: str, n: int) -> Tensor:
        return torch.empty(n, device=_META, dtype=torch.float32)

    def locals(self, uses: int = 1) -> Sequence[Local]:
        self._uses = uses
        self.steps += [
            Work("encode", n, uses, self.entries_of(n), self.device) for n in self.bucket.sizes
        ]
        dtype: torch.dtype = getattr(torch, self.bucket.dtype)
        flat = [torch.empty(n, dtype=dtype, device=_META) for n in self.bucket.sizes]
        return [Local(p.name, p.shape, x, x, {}) for p, x in zip(self.bucket.parameters, flat)]

    def commit(
        self, status: Tensor, states: Mapping[str, State], sent: Mapping[str, Tensor] | None = None
    ) -> None:
        """Records that what a rank added up is written; no state is kept."""
        for n in self.bucket.sizes:
            self.accumulates(n, self._uses)


class SizedMachineSums(MachineSums):
    """Sums inside the machine first, as `runtime.hierarchy` does, by sizes."""

    def __init__(self, context: SizedContext, machines: Machines, outer: Collective) -> None:
        super().__init__(context.bucket, context.rank, machines)
        plain = Strategy.parse("none | alltoall").compressor
        self._shards = ShardLayout.of(plain, context.bucket, machines.per_node, self.pieces)
        self._context, strategy, ranks = context, context.strategy, self._cross.ranks
        self._crossing = SizedContext(
            Strategy(strategy.compressor, outer, strategy.feedback), self.kept,
            ranks.index(context.rank), len(ranks), context.steps,
            context.crowd.summed(machines.per_node),
        )  # fmt: skip
        self._crossing.device = context.device

    def _scatter(self) -> AllToAll:
        self._works("encode", self._context)
        return self._shards.outgoing(_bytes(sum(self._shards.sizes)), self._local)

    def _average(self, arrived: Tensor) -> Tensor:
        self._works("accumulate", self._crossing, len(self._node.ranks))
        return _bytes(HEADER_BYTES)

    def _cross_over(self, told: Tensor) -> Rounds[None]:
        return self._crossing.strategy.collective.rounds(self._crossing)

    def _gather(self) -> Tensor:
        self._works("encode", self._crossing)
        return _bytes(self._shards.answer_bytes)

    def _collect(self, messages: Tensor) -> None:
        self._works("decode", self._context)

    def _works(self, kind: WorkKind, on: SizedContext, contributions: int = 1) -> None:
        """Records work on the context's parameters: whole ones, or this rank's parts."""
        device = self._context.device
        self._context.steps += [Work(kind, n, contributions, n, device) for n in on.bucket.sizes]


class SizedStages(Walk):
    """A path of tasks, by sizes."""

    def __init__(self, context: SizedContext, plan: StageLayout) -> None:
        dtype: torch.dtype = getattr(torch, context.bucket.dtype)
        super().__init__(plan, context.rank, dtype, _META)
        self._context = context
        self._numbers = [torch.empty(n, dtype=dtype, device=_META) for n in context.bucket.sizes]

    def _finish(self) -> None:
        """Does nothing: sizes need no last step."""

    def _compress(self, number: int) -> None:
        had = self._before(number)
        leaves = self._before(number + 1).leaves
        for begin, end in had.region:
            self._context.encodes(end - begin, self._tasks[number].at, len(leaves))
        self._messages = [[_bytes(self._plan.layout(leaf).bytes)] for leaf in leaves]

    def _decompress(self, number: int) -> None:
        had = self._before(number)
        region = self._before(number + 1).region
        for begin, end in region:
            device = self._tasks[number].at
            self._context.accumulates(end - begin, had.contributions, device)
        self._numbers = split(
            torch.empty(elements(region), device=_META, dtype=torch.float32), region
        )


def _bytes(n: int) -> Tensor:
    return torch.empty(n, dtype=torch.uint8, device=_META)


def measured_only(strategy: Strategy, why: Exception | None = None) -> NoReturn:
    """Raises PlanError: what this strategy sends is not known in advance. why: the error of the
    code that read data."""
    told = f" (without data: {why})" if why else ""
    raise PlanError(
        f"what '{strategy.collective}' sends depends on the data, step by step{told}: its cost "
        "can be measured only, not computed. Profile with it, and plan for the profiled cluster."
    ) from why
