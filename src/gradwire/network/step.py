"""A training step of a plan: buckets that are ready one after the other, and their lanes.

backward  ├───────●────────●──────────┤             ● a bucket is ready
lane 0            ├ encode ┄ moves ┄ decode ┤       a rank's; its moves are messages, which
lane 1                     ├ encode ┄ moves ┄ …     wait for those of other ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gradwire.network.arrays import Ints
from gradwire.network.demand import MoveLike, Pattern, flows_between
from gradwire.network.placement import Placement
from gradwire.network.workload import Workload


class BucketLike(Protocol):
    """What planning writes of a bucket (`planner.traffic.BucketTraffic`): plain values.

    ready_seconds: counted from the start of backward; before_seconds, after_seconds: local work,
    and waiting, before its moves and after. moves: of each rank, or one row if all do the same.
    """

    @property
    def lane(self) -> int:
        """Which of the conductor's lanes exchanges it."""

    @property
    def ready_seconds(self) -> float:
        """When its gradients are there."""

    @property
    def before_seconds(self) -> float:
        """Seconds of local work before its moves."""

    @property
    def after_seconds(self) -> float:
        """Seconds of local work after its moves."""

    @property
    def moves(self) -> Sequence[Sequence[MoveLike]]:
        """What every rank moves, in order."""


def workload_of(
    buckets: Iterable[BucketLike], placement: Placement, backward_seconds: float = 0.0,
    algorithms: Mapping[str, Pattern] | None = None,
) -> Workload:  # fmt: skip
    """The workload from the start of backward until all buckets are in place and backward, which
    lasts as long at least, is over. A lane takes its buckets in their order. algorithms: as of
    `demand.flows_of`. NetworkError as of `demand.flows_of`."""
    ranks = placement.ranks
    workload, lanes = Workload(ranks), dict[int, Ints]()
    workload.work(backward_seconds, 1)
    for bucket in buckets:
        begin = workload.work(bucket.before_seconds, ranks)
        workload.wait(workload.work(bucket.ready_seconds, ranks), begin)
        if bucket.lane in lanes:
            workload.wait(lanes[bucket.lane], begin)
        flows = flows_between(bucket.moves, placement, algorithms)
        end = workload.exchange(begin, flows, bucket.lane)
        lanes[bucket.lane] = workload.work(bucket.after_seconds, ranks)
        workload.wait(end, lanes[bucket.lane])
    return workload
