"""A training step of many ranks, as transfers that wait for each other: computing, activations
between stages, gradients around rings.

    stage 0   F F F F ·  ·  B B B B ╌╌► ring of stage 0's replicas
               ╲ ╲ ╲ ╲    ╱ ╱ ╱ ╱
    stage 1     F F F F  B B B B ╌╌╌► ring of stage 1's replicas

A job is a TOML file with the fields of `Parallelism`, by name:

    dp = 32
    gradient_bytes = 437_500_000
    forward_seconds = 0.012          # and so on
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwire.document import TOML, Document
from gradwire.errors import NetworkError
from gradwire.families import STEPS
from gradwire.network.built import called
from gradwire.network.checked import Ints
from gradwire.network.flows import Flows
from gradwire.network.importers import read
from gradwire.network.workload import Workload
from gradwire.notation import Notation
from gradwire.schema import Number, Table, Whole, broken

FORWARD, BACKWARD, RING = range(3)
"""The kinds of connections: for activations, for their gradients, for the model's gradients."""


@dataclass(frozen=True)
class Parallelism:
    """A job of dp replicas of pp stages of tp ranks. A rank is (stage · dp + replica) · tp + t:
    ranks of a tensor-parallel group follow each other, and belong on one machine, as their own
    traffic is part of the seconds of computing.

    gradient_bytes: those of one rank, in `buckets` parts that are ready one after the other in the
    last backward pass. activation_bytes: what one rank sends to the next stage for a microbatch.
    forward_seconds, backward_seconds: for one microbatch on one stage. Raises NetworkError for
    values out of range.
    """

    dp: int
    pp: int
    tp: int
    gradient_bytes: int
    activation_bytes: int
    microbatches: int
    forward_seconds: float
    backward_seconds: float
    buckets: int = 1

    def __post_init__(self) -> None:
        JOB.take(vars(self))
        if self.ranks * self.microbatches > _MOST:
            rule = f"must have at most {_MOST} microbatches, on all ranks together"
            JOB.refuse(broken(rule, self.ranks * self.microbatches))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.dp * self.pp * self.tp

    @property
    def part_bytes(self) -> int:
        """The bytes that a rank of a ring sends in one step."""
        return -(-self.gradient_bytes // (self.buckets * self.dp))

    def rank(self, replica: Ints, stage: Ints, t: Ints) -> Ints:
        """Returns the rank at each place: replica, pipeline stage and tensor-parallel part."""
        return (stage * self.dp + replica) * self.tp + t


_FEW, _BYTES, _SECONDS = Whole(1, 1 << 20), Whole(1, 1 << 50), Number(0, 1e9)
_MOST = 1 << 24
JOB = Document(
    "a parallel job",
    Table(
        {
            "dp": _FEW, "pp": _FEW, "tp": _FEW, "gradient_bytes": _BYTES,
            "activation_bytes": _BYTES, "microbatches": _FEW, "forward_seconds": _SECONDS,
            "backward_seconds": _SECONDS,
        },
        {"buckets": _FEW}, by_hand=True,
    ),
    NetworkError, "Correct it", syntax=TOML,
)  # fmt: skip
NOTATION = Notation(
    "step", "a plan (.json), a parallel job (.toml), or a reader with its file",
    "parallel('job.toml')", NetworkError, elsewhere={"./contrib/formats": ("chakra",)},
)  # fmt: skip


def job_of(text: str) -> Parallelism:
    """Reads a job from TOML. Raises NetworkError for text that cannot be read, and for fields that
    are missing, unknown or out of range."""
    return Parallelism(**JOB.read(text))


def parallel(file: str) -> Workload:
    """Returns a step of the parallel job in a file. Raises NetworkError as `job_of` does, and if
    the file cannot be read."""
    return workload_of(job_of(read(file)))


BASE, MEMBERS = Workload, (parallel,)


def step_of(text: str) -> Workload:
    """Reads a step by a reader: `parallel`, or one of another package. Raises NetworkError if it
    is none."""
    found: Workload = called(NOTATION, STEPS, text)
    return found


def workload_of(job: Parallelism) -> Workload:
    """Returns the workload of a step. Connections keep their paths: activations, their gradients
    and rings are routed once each."""
    return _Step(job).workload


def connections(job: Parallelism) -> Flows:
    """Returns the connections between ranks, one flow each; its step is its kind: FORWARD,
    BACKWARD or RING."""
    replica, stage, t = _grid(job, job.pp - 1)
    here, there = job.rank(replica, stage, t), job.rank(replica, stage + 1, t)
    replica, stage, t = _grid(job, job.pp if job.dp > 1 else 0)
    own, after = job.rank(replica, stage, t), job.rank((replica + 1) % job.dp, stage, t)
    sizes = [job.activation_bytes] * 2 * len(here) + [job.part_bytes] * len(own)
    kinds = np.repeat([FORWARD, BACKWARD, RING], [len(here), len(here), len(own)])
    return Flows(
        np.concatenate([here, there, own]), np.concatenate([there, here, after]),
        np.array(sizes, np.int64), kinds,
    )  # fmt: skip


def _grid(job: Parallelism, stages: int) -> tuple[Ints, Ints, Ints]:
    """Returns replica, stage and index in the tensor-parallel group of the first stages' ranks."""
    stage, rest = np.divmod(np.arange(stages * job.dp * job.tp), job.dp * job.tp)
    replica, t = np.divmod(rest, job.tp)
    return replica, stage, t


class _Step:
    """Builds a workload: the work of stages, and messages on `connections`."""

    def __init__(self, job: Parallelism) -> None:
        self.job, self.workload = job, Workload(job.ranks)
        own = connections(job)
        number = self.workload.connect(own)
        self.paths = [  # [kind][stage]; between two stages, that of the first
            number[own.step == kind].reshape(-1, job.dp * job.tp)
            for kind in (FORWARD, BACKWARD, RING)
        ]
        self.sent: dict[tuple[int, int, int], Ints] = {}  # by kind, stage, microbatch
        last = self._compute()
        if job.dp > 1:
            self._rings(last)

    def _compute(self) -> list[list[Ints]]:
        """Adds the work of every stage and replica, in the order one forward, one backward
        (Narayanan et al. 2021, figure 4), with messages between stages. Returns the parts of each
        stage's last backward pass, [stages][buckets], a row for each replica."""
        job, workload = self.job, self.workload
        queues = [_order(job, stage) for stage in range(job.pp)]
        previous: list[Ints | None] = [None] * job.pp
        last: list[list[Ints]] = [[] for _ in range(job.pp)]
        while any(queues):
            for stage, queue in enumerate(queues):
                while queue and self._is_there(*queue[0], stage):
                    kind, batch = queue.pop(0)
                    parts = job.buckets if not queue else 1
                    seconds = job.forward_seconds if kind == FORWARD else job.backward_seconds
                    for part in range(parts):
                        rows = workload.work(seconds / parts, job.dp)
                        self._show(kind, batch, stage, rows)
                        before = previous[stage]
                        if before is not None:
                            workload.wait(before, rows)
                        arrived = self.sent.get((kind, stage, batch))
                        if part == 0 and arrived is not None:
                            workload.wait(arrived, np.repeat(rows, job.tp))
                        previous[stage] = rows
                        if not queue:
                            last[stage].append(rows)
                    self._send(kind, stage, batch, rows)
        return last

    def _show(self, kind: int, batch: int, stage: int, rows: Ints) -> None:
        """Shows what replicas compute, each on all ranks of its tensor-parallel group."""
        what, name = ("compute", "forward ") if kind == FORWARD else ("backward", "")
        own = np.repeat(rows, self.job.tp)
        self.workload.show(what, f"{name}of microbatch {batch}", self._ranks(stage), own)

    def _ranks(self, stage: int) -> Ints:
        """Returns the ranks of a stage, in the order of its connections."""
        return stage * self.job.dp * self.job.tp + np.arange(self.job.dp * self.job.tp)

    def _is_there(self, kind: int, batch: int, stage: int) -> bool:
        first = 0 if kind == FORWARD else self.job.pp - 1
        return stage == first or (kind, stage, batch) in self.sent

    def _send(self, kind: int, stage: int, batch: int, rows: Ints) -> None:
        job, to = self.job, stage + 1 if kind == FORWARD else stage - 1
        if not 0 <= to < job.pp:
            return
        message = self.workload.send(self.paths[kind][min(stage, to)], job.activation_bytes)
        name = "activations" if kind == FORWARD else "gradients"
        self.workload.show(
            "wire", f"{name} of microbatch {batch}, to stage {to}", self._ranks(stage), message,
            bytes=job.activation_bytes,
        )  # fmt: skip
        self.workload.wait(np.repeat(rows, job.tp), message)
        self.sent[kind, to, batch] = message

    def _rings(self, last: list[list[Ints]]) -> None:
        """Adds the rings, bucket after bucket: in each step a rank sends on what it received in
        the step before."""
        job = self.job
        shift = np.roll(np.arange(job.dp * job.tp), job.tp)
        for stage, (own, parts) in enumerate(zip(self.paths[RING], last)):
            before: Ints | None = None
            for bucket, ready in enumerate(parts):
                first: Ints | None = None
                for turn in range(2 * (job.dp - 1)):
                    rows = self.workload.send(own, job.part_bytes)
                    if turn == 0:
                        self.workload.wait(np.repeat(ready, job.tp), rows)
                    if before is not None:
                        self.workload.wait(before, rows)
                        self.workload.wait(before[shift], rows)
                    before, first = rows, rows if first is None else first
                if first is not None and before is not None:
                    self.workload.show(
                        "wire", f"bucket {bucket}", self._ranks(stage), first, before,
                        2 * (job.dp - 1) * job.part_bytes,
                    )  # fmt: skip


def _order(job: Parallelism, stage: int) -> list[tuple[int, int]]:
    """Returns a stage's passes as (kind, microbatch): as many forward passes as there are stages
    after this one, then one forward, one backward."""
    ahead = min(job.pp - 1 - stage, job.microbatches)
    order = [(FORWARD, batch) for batch in range(ahead)]
    for batch in range(job.microbatches):
        if ahead + batch < job.microbatches:
            order.append((FORWARD, ahead + batch))
        order.append((BACKWARD, batch))
    return order
