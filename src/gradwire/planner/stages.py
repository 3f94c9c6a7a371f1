"""Turns a profile into stages: a bucket's work by a strategy, with its resources and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gradwire import beside
from gradwire.buckets import Bucket
from gradwire.layout.message import Layout
from gradwire.planner.profile import Profile, Ready, TableCost
from gradwire.planner.timeline import Executor, Job, Resource, Stage
from gradwire.strategy import Claims, Strategy

_MANY = 1 << 20  # elements


@dataclass(frozen=True)
class Bucketed:
    """What stages depend on: elements of all parameters, their number, when the last is ready,
    whether the optimizer treats all of them by its other rule, and their dtype; "": the profile's.
    """

    elements: int
    parameters: int
    ready_seconds: float
    is_other: bool = False
    dtype: str = ""

    @staticmethod
    def alone(ready: Ready) -> Bucketed:
        """Returns a bucket of one parameter."""
        own = ready.parameter
        return Bucketed(own.elements, 1, ready.seconds, ready.is_other, own.dtype)

    @staticmethod
    def joined(parts: Sequence[Bucketed]) -> Bucketed:
        """Returns all of them as one bucket."""
        return Bucketed(
            sum(own.elements for own in parts), sum(own.parameters for own in parts),
            max(own.ready_seconds for own in parts), all(own.is_other for own in parts),
            parts[0].dtype,
        )  # fmt: skip


@lru_cache(maxsize=1024)
def way(strategy: str, is_other: bool) -> str:
    """Returns a bucket's strategy if matrices use this one. is_other: whether the optimizer treats
    the bucket by its other rule."""
    second = beside.second(Strategy.parse(strategy)) if is_other else None
    return strategy if second is None else str(second)


@lru_cache(maxsize=1024)
def bytes_ratio(strategy: str, dtype: str, measured: str) -> float:
    """Returns how many times the bytes a strategy sends for gradients of a dtype, if it was
    measured on those of another: twice as many for fp32 instead of bf16, if they are sent whole;
    as many if it has a format of its own."""
    made = Strategy.parse(strategy)
    own, other = (made.compressor.claims(_MANY, name) for name in (dtype, measured))
    if made.collective.own_feedback or not (own.fixed and other.fixed):
        return 1.0
    return bytes_of(own) / bytes_of(other)


def bytes_of(claims: Claims) -> int:
    """Returns the size in bytes of a message with one such payload."""
    return Layout.of([claims]).bytes


@dataclass(frozen=True)
class Stages:
    """Stages of buckets by strategies, as a profile measured them.

    Local work is on the conductor's threads or streams (WORKERS). A move is a start-up (LATENCY),
    then work on the link that the ranks share: NODE if all are on one machine, else CROSS.
    keeps_moments: whether plans keep the optimizer's moments (`Dynamics.keeps_moments`), whose
    time is then local work.
    """

    profile: Profile
    keeps_moments: bool = False

    @cached_property
    def link(self) -> Resource:
        """The link that ranks share: inside one machine, or between machines."""
        return Resource.NODE if len(set(self.profile.hosts)) == 1 else Resource.CROSS

    @cached_property
    def _parameters(self) -> dict[str, Bucketed]:
        return {own.parameter.name: Bucketed.alone(own) for own in self.profile.ready}

    def bucketed(self, bucket: Bucket) -> Bucketed:
        """Returns a plan's bucket, ready when the last of its parameters is."""
        return Bucketed.joined([self._parameters[name] for name in bucket.names])

    def of(self, bucket: Bucketed, strategy: str) -> tuple[Stage, ...]:
        """Returns the bucket's stages. Raises PlanError if its strategy (see `way`) was not
        measured."""
        text = way(strategy, bucket.is_other)
        cost = self.profile.cost(text)
        more = (bucket.parameters - 1) * cost.per_parameter_seconds
        wire = cost.wire(bucket.elements)
        link = cost.link_seconds(bucket.elements)
        encode, decode = cost.encode(bucket.elements), cost.decode(bucket.elements)
        share = encode / (encode + decode) if encode + decode > 0 else 1.0
        stages = (
            Stage(Resource.WORKERS, encode + more * share, "encode"),
            Stage(Resource.LATENCY, wire - link, "wire"),
            Stage(self.link, link * self.ratio(text, bucket.dtype), "wire"),
            Stage(Resource.WORKERS, decode + more * (1 - share), "decode"),
        )
        return tuple(stage for stage in stages if stage.seconds > 0)

    def ratio(self, strategy: str, dtype: str) -> float:
        """Returns how many times the measured bytes a strategy sends for gradients of a dtype."""
        main = self._main
        return 1.0 if dtype in ("", main) else bytes_ratio(strategy, dtype, main)

    @cached_property
    def _main(self) -> str:
        return self.profile.dtype

    def job(self, bucket: Bucketed, strategy: str, label: str = "") -> Job:
        """Returns the bucket's job by a strategy."""
        return Job(self.woken(bucket.ready_seconds), self.of(bucket, strategy), label)

    def woken(self, ready: float) -> float:
        """Returns when a lane begins with a bucket that is ready: while backward runs, it must be
        woken first."""
        backward = self.profile.backward_seconds
        return min(ready + self.profile.contention.wake_seconds, max(ready, backward))

    def of_table(self, cost: TableCost) -> tuple[Stage, ...]:
        """Returns the stages of tables in one bucket, as measured. The part of the moves that is
        waiting is taken from the strategy with the least latency."""
        waits = min((own.latency_seconds for own in self.profile.strategies.values()), default=0.0)
        waits = min(waits, cost.wire)
        stages = (
            Stage(Resource.WORKERS, cost.encode, "encode"),
            Stage(Resource.LATENCY, waits, "wire"),
            Stage(self.link, cost.wire - waits, "wire"),
            Stage(Resource.WORKERS, cost.decode, "decode"),
        )
        return tuple(stage for stage in stages if stage.seconds > 0)

    def table_job(self, bucket: Bucket, strategy: str) -> Job | None:
        """Returns the job of tables in one bucket; None if the strategy was not measured so."""
        known = (
            cost
            for cost in self.profile.tables
            if set(cost.parameters) == set(bucket.names) and cost.strategy == strategy
        )
        cost = next(known, None)
        if cost is None:
            return None
        return Job(self.woken(self.bucketed(bucket).ready_seconds), self.of_table(cost))

    def executor(self, lanes: int) -> Executor:
        """Returns the profiled job's executor, with so many lanes."""
        shared = self.profile.contention
        spared = self.profile.moments_seconds if self.keeps_moments else 0.0
        return Executor(
            lanes=lanes, cores=shared.cores, wire_demand=shared.wire_demand,
            around_seconds=max(0.0, self.profile.around_seconds - spared),
            backward_seconds=self.profile.backward_seconds,
            start_slowdown=shared.start_slowdown, start_sharing=shared.start_sharing,
            start_demand=shared.start_demand,
        )  # fmt: skip
