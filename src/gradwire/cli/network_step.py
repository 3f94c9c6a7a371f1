"""What `gradwire network simulate --step` names: a plan, a parallel job, or another step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.network_traffic import placement_of
from gradwire.errors import NetworkError

if TYPE_CHECKING:
    from gradwire.network.fabric import Fabric
    from gradwire.network.placement import Placement
    from gradwire.network.workload import Workload


def workload_of(arguments: argparse.Namespace, topology: Fabric) -> tuple[Workload, Placement]:
    """And where its ranks are. NetworkError, PlanError."""
    from gradwire.network.parallelism import step_of

    text, end = arguments.step, Path(arguments.step).suffix
    if end == ".json":
        return _of_plan(arguments, topology)
    made = step_of(f"parallel({text!r})" if end == ".toml" else text)
    return made, _placed(arguments, topology, made.ranks)


def _placed(arguments: argparse.Namespace, topology: Fabric, ranks: int) -> Placement:
    if arguments.ranks not in (None, ranks):
        raise NetworkError(
            f"this step says how many ranks it has, {ranks}; got --ranks {arguments.ranks}. Leave "
            "it out."
        )
    own = argparse.Namespace(**{**vars(arguments), "ranks": ranks})
    return placement_of(own, topology.hosts, arguments.seed)


def _of_plan(arguments: argparse.Namespace, topology: Fabric) -> tuple[Workload, Placement]:
    """The plan's traffic on as many ranks as the topology has hosts, unless --ranks says
    otherwise."""
    from gradwire.network.demand import workload_of
    from gradwire.plan import Plan
    from gradwire.planner.profile import Profile
    from gradwire.planner.traffic import traffic_of
    from gradwire.planner.whatif import on
    from gradwire.topology import Cluster

    if arguments.profile is None:
        raise NetworkError(
            "a plan's step needs the times of its job; --profile is missing. Measure one by "
            "gradwire profile."
        )
    where = placement_of(arguments, topology.hosts, arguments.seed)
    plan, profile = Plan.load(arguments.step), Profile.load(arguments.profile)
    if where.ranks != profile.world:
        each = arguments.per_machine
        rate = float(topology.host_up.sum(1).min())
        profile = on(profile, Cluster(where.ranks // each, each, cross_bits_per_second=rate))
    buckets = traffic_of(plan, profile, arguments.per_machine)
    return workload_of(buckets, where, profile.backward_seconds), where
