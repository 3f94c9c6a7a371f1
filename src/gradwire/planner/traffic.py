"""A plan's network traffic in a step, bucket by bucket: plain values, for the network planner
(`gradwire.network.demand`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.errors import PlanError
from gradwire.plan import Plan
from gradwire.planner.candidates import jobs_of
from gradwire.planner.links import usual_density
from gradwire.planner.priced import PricedMove
from gradwire.planner.pricing import Size, price
from gradwire.planner.profile import Profile
from gradwire.planner.timeline import Resource
from gradwire.strategy import Strategy


@dataclass(frozen=True)
class BucketTraffic:
    """The traffic of one bucket. lane: of the conductor. ready_seconds: from the start of
    backward. before_seconds: encoding, and starting moves; after_seconds: decoding. moves: of each
    rank, or one row if all do the same. name: of the bucket, in a trace. starting_seconds: of
    those before, what starting moves takes.
    """

    lane: int
    ready_seconds: float
    before_seconds: float
    after_seconds: float
    moves: Sequence[Sequence[PricedMove]]
    name: str = "bucket"
    starting_seconds: float = 0.0


def traffic_of(plan: Plan, profile: Profile, per_node: int = 1) -> list[BucketTraffic]:
    """Returns the traffic of the profile's ranks, per_node to a machine; for other clusters, see
    `planner.whatif.on`. Raises PlanError for a strategy that was not measured or cannot be priced,
    and for sparse gradients."""
    profile.check([p for bucket in plan.buckets for p in bucket.parameters])
    found, every = [], zip(plan.buckets, plan.strategies, jobs_of(profile, plan))
    for number, (bucket, strategy, job) in enumerate(every):
        if job is None or bucket.has_rows:
            raise PlanError(
                "the traffic of sparse gradients depends on the data, and cannot be priced; those "
                f"of {', '.join(bucket.names[:5])} travel as rows. Leave them out of the plan."
            )
        encode = sum(s.seconds for s in job.stages if s.kind == "encode")
        starting = sum(
            s.seconds for s in job.stages if s.kind != "encode" and s.lane == Resource.LATENCY
        )
        found.append(
            BucketTraffic(
                number % plan.lanes, job.ready_seconds, encode + starting,
                sum(s.seconds for s in job.stages if s.kind == "decode"),
                moves_of(
                    strategy, bucket.parameters, profile.world, per_node=per_node,
                    density=usual_density(profile), dtype=profile.dtype,
                ),
                f"bucket {number} [{strategy}]", starting,
            )
        )  # fmt: skip
    return found


def moves_of(
    strategy: Strategy | str, sizes: Sequence[Size], world: int, *, per_node: int = 1,
    density: float | None = None, dtype: str = "float32",
) -> list[tuple[PricedMove, ...]]:  # fmt: skip
    """Returns the moves of one bucket: a row for each rank if ranks exchange with partners, else
    one row. Arguments and errors are those of `pricing.price`."""
    rows = list[tuple[PricedMove, ...]]()
    for rank in range(world):
        priced = price(
            strategy, sizes, world, per_node=per_node, rank=rank, density=density, dtype=dtype
        )
        rows.append(priced.moves)
        if all(move.name != "exchange" for move in priced.moves):
            break
    return rows
