"""gradwire.attach: a plan that is given, or one that is found on the running job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch.distributed as dist
from torch import nn

from gradwire.plan import BUCKET_BYTES, Plan
from gradwire.planner.choose import check_momentum
from gradwire.strategy import Strategy
from gradwire.training import attach as given
from gradwire.training.attach import Handle
from gradwire.tuning import profile_only
from gradwire.tuning.auto import Tuner
from gradwire.tuning.profiling import STRATEGIES


class TunedHandle(Handle):
    """A model whose plan is found while it trains."""

    def tune(self, tuner: Tuner) -> TunedHandle:
        """Made by `attach`."""
        self.tuner = tuner
        return self

    def detach(self) -> None:
        self.tuner.close()
        super().detach()


def attach(
    module: nn.Module, plan: str | Strategy | Plan | Path = "auto",
    process_group: dist.ProcessGroup | None = None, *,
    strategies: Sequence[str] | None = None,
    bucket_bytes: int = BUCKET_BYTES, buckets: Iterable[Sequence[str]] | None = None,
    lanes: int | None = None, clip_norm: float | None = None, seed: int = 0,
    timeout_seconds: float = 300.0,
) -> Handle:  # fmt: skip
    """Synchronize a model's gradients by a plan, from the next backward on. Collective.

    Args:
        module: a plain module (its parameters and buffers are broadcast from rank 0, as DDP
            does) or a `DistributedDataParallel` (whose one comm hook is taken).
        plan: "auto", a strategy ("topk(0.01)+ef | allgather"), a `Strategy`, a `Plan`, or the path
            of a saved plan. "auto" begins as plain fp32, watches ten steps, measures for about
            half a minute, lets the best plans race on real steps beside tuned fp32 and bf16, and
            adopts the winner; it plans again when steps become much slower or faster.
        process_group: whose ranks average; DDP's own, or the default group.
        strategies: of "auto": what may be used besides fp32 and bf16 all-reduce.
        bucket_bytes: cap of a bucket, in bytes of gradient. Tables with sparse gradients, whose
            size is not known, share one with their neighbours.
        buckets: explicit buckets, as lists of parameter names; the rest is grouped by size.
        lanes: buckets under way at once; each is a thread with its own process group. By default
            two on CPUs (benchmarks/demo) and one on CUDA. A `Plan` brings its own number.
        clip_norm: clip each rank's gradient so that the average's norm is at most about this;
            exact, so the exchange then begins after backward.
        seed: of stochastic compressors.
        timeout_seconds: how long to wait for a silent peer.

    Returns:
        The handle. `loss.backward()` now returns with averaged gradients in `.grad`.

    Raises:
        StrategyError, PlanError: what is asked for is wrong, or differs between ranks (on all
            ranks). UsageError: this module cannot be attached, or machines differ in their
            number of ranks where the plan asks for it (on all ranks).
    """
    wanted = STRATEGIES if strategies is None else tuple(strategies)
    for text in wanted if plan == "auto" else ():
        check_momentum(text)
    only_profiled = profile_only.is_asked()
    first = "none | allreduce" if only_profiled or plan == "auto" else plan
    handle = given.attach(
        module, first, process_group, bucket_bytes=bucket_bytes, buckets=buckets, lanes=lanes,
        clip_norm=clip_norm, seed=seed, timeout_seconds=timeout_seconds,
    )  # fmt: skip
    if only_profiled:
        profile_only.profile_and_exit(module, handle)
        return handle
    if plan != "auto":
        return handle
    handle.__class__ = TunedHandle
    assert isinstance(handle, TunedHandle)
    return handle.tune(Tuner(module, handle, wanted))
