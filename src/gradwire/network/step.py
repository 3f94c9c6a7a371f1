"""A training step of a plan: buckets that are ready one after the other, and their lanes.

backward  ├───────●────────●──────────┤             ● a bucket is ready
lane 0            ├ encode ┄ moves ┄ decode ┤       a rank's; its moves are messages, which
lane 1                     ├ encode ┄ moves ┄ …     wait for those of other ranks
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradwire.network.arrays import Ints
from gradwire.network.demand import flows_between
from gradwire.network.placement import Placement
from gradwire.network.workload import Workload

if TYPE_CHECKING:
    from gradwire.planner.traffic import BucketTraffic


def workload_of(
    buckets: Iterable[BucketTraffic], placement: Placement, backward_seconds: float = 0.0
) -> Workload:
    """The workload from the start of backward until all buckets are in place and backward, which
    lasts as long at least, is over. A lane takes its buckets in their order. NetworkError as of
    `demand.flows_of`."""
    ranks = placement.ranks
    workload, lanes = Workload(ranks), dict[int, Ints]()
    workload.work(backward_seconds, 1)
    for bucket in buckets:
        begin = workload.work(bucket.before_seconds, ranks)
        workload.wait(workload.work(bucket.ready_seconds, ranks), begin)
        if bucket.lane in lanes:
            workload.wait(lanes[bucket.lane], begin)
        flows = flows_between(bucket.moves, placement)
        end = workload.exchange(begin, flows, bucket.lane)
        lanes[bucket.lane] = workload.work(bucket.after_seconds, ranks)
        workload.wait(end, lanes[bucket.lane])
    return workload
