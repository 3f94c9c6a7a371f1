"""Makes the context that a strategy needs, from its parts."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.buckets import Bucket
from gradwire.groups import Machines
from gradwire.layout.stages import StageLayout
from gradwire.runtime import host_copies
from gradwire.runtime.codec import Memory
from gradwire.runtime.context import BucketContext
from gradwire.runtime.hierarchy import BucketMachineSums
from gradwire.runtime.machine_rows import MachineRows
from gradwire.runtime.offload import OffloadedContext
from gradwire.runtime.stages import BucketStages
from gradwire.strategy import Strategy


def make_context(
    strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory,
    machines: Machines | None = None, **options: Any,
) -> BucketContext:  # fmt: skip
    """Returns one rank's context for one bucket. options: for `Codec`; device: the gradients'.

    machines: which ranks share a machine, for a collective that needs it. By default each
    `per_node` consecutive ranks do, or all if the collective gives no number.
    """
    collective = strategy.collective
    device = torch.device(options.get("device", "cpu"))
    if collective.on_host and host_copies.is_apart(device):
        options["device"] = host_copies.CPU
        context: BucketContext = OffloadedContext(
            strategy, bucket, rank, world, memory, beside=device, **options
        )
    else:
        context = BucketContext(strategy, bucket, rank, world, memory, **options)
    if collective.per_node is not None:
        machines = machines or Machines.even(world, collective.per_node or world)
    if collective.tasks is not None:
        plan = StageLayout(collective.tasks, bucket, world, strategy.compressor, machines)
        context.take(BucketStages(context.codec, plan))
    elif collective.across is not None and machines is not None and machines.per_node > 1:
        kind = MachineRows if bucket.has_rows else BucketMachineSums
        context.take(kind(context.codec, machines, collective.across, **options))
    return context


def sends_from_host(strategy: Strategy, bucket: Bucket | None = None) -> bool:
    """Whether a bucket's messages lie in the host's memory, wherever gradients are: the work is
    done there, or the number of entries or rows decides what is sent next."""
    way, has_rows = strategy.collective, bucket is not None and bucket.has_rows
    by_lists = "entries" in way.needs or (way.takes_rows and way.own_feedback) or has_rows
    return way.on_host or by_lists
