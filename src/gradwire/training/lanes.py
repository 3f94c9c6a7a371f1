"""The lanes of an attached model: their process groups, and the performers of their moves."""

from __future__ import annotations

from contextlib import ExitStack

import torch
import torch.distributed as dist

from gradwire.groups import Machines
from gradwire.pins import Pins
from gradwire.plan import Plan
from gradwire.runtime.clocks import one_way_seconds
from gradwire.runtime.planes import PlanePerformer, join_planes
from gradwire.runtime.process_groups import attaching, make_group, make_parts
from gradwire.runtime.torch_dist import Performer, backend_of
from gradwire.training.attachable import not_carried


def lane_performers(
    plan: Plan, first: dist.ProcessGroup, parent: dist.ProcessGroup | None,
    machines: Machines | None, pinned: tuple[Pins, list[int]] | None, timeout_seconds: float,
    device: torch.device, made: ExitStack,
) -> list[Performer]:  # fmt: skip
    """Returns a performer for each lane of the plan. first: a group that was made already;
    pinned: the pins, and the hosts of ranks; made: closes them if attaching fails. Collective."""
    far = _far_seconds(first, device)
    groups = _groups(plan, first, parent, timeout_seconds, device, made)
    performers = list[Performer]()
    for group in groups:
        parts = make_parts(group, machines, timeout_seconds, device)
        if pinned is None:
            performers.append(Performer(group, parts, device, far))
        else:
            planes = join_planes(*pinned, group, timeout_seconds)
            performers.append(PlanePerformer(group, planes, parts, device))
        made.callback(performers[-1].close)
    return performers


def _far_seconds(group: dist.ProcessGroup, device: torch.device) -> float:
    """Returns how far ranks are from each other, where moves depend on it: over Gloo, among three
    or more. Collective."""
    if dist.get_world_size(group) < 3 or backend_of(group, device) != "gloo":
        return 0.0
    with attaching(group):
        return one_way_seconds(group)


def _groups(
    plan: Plan, first: dist.ProcessGroup, parent: dist.ProcessGroup | None,
    timeout_seconds: float, device: torch.device, made: ExitStack,
) -> list[dist.ProcessGroup]:  # fmt: skip
    """Returns a process group for each lane, with backends for all that the plan sends.
    Collective."""
    lanes = min(plan.lanes, len(plan.buckets))
    if backend_of(first, device) == "nccl":  # a plan may not know that NCCL needs one
        lanes = 1
    by_host = not_carried(zip(plan.buckets, plan.strategies), first, device) is not None
    groups = [] if by_host else [first]
    if by_host:
        Performer(first).close()
    while len(groups) < lanes:
        groups.append(make_group(parent, timeout_seconds, device, by_host=by_host))
        made.callback(Performer(groups[-1]).close)
    return groups
