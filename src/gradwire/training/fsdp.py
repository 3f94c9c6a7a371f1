"""FSDP2: replicas of a sharded model exchange gradients by a plan; torch does the sharding.

                 shard 0       shard 1
    replica 0    rank 0  ═════ rank 1      ══  fully_shard over mesh["shard"]: fast, dense
                   ┊             ┊
    replica 1    rank 2  ═════ rank 3      ┊   mesh["replicate"]: slow, by the plan

The exchanged gradients are those of shards, the part of each parameter that this rank keeps. The
ranks of a replicate group keep the same shards; each such group has a plan of its own. Where a
plan is found (plan="auto"), all groups agree on its strategies and its groups of names.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.errors import UsageError
from gradwire.plan import Plan
from gradwire.runtime.process_groups import count_alike, make_group, stored_texts
from gradwire.runtime.torch_dist import Performer
from gradwire.training.attachable import device_of
from gradwire.training.copies import Hook
from gradwire.training.module import ModuleFrontend, after_last_words
from gradwire.training.session import Session
from gradwire.training.trainable import is_shard, resharded, shard_of, trainable


class FsdpFrontend(ModuleFrontend):
    """Takes gradients as fully_shard leaves them, from hooks of the sharded parameters.

    torch calls the post-accumulate-grad hooks of a sharded parameter when its `.grad` is final:
    reduced, divided, cast to the parameter's dtype, added to its former value (pytorch/pytorch
    #129450, read in torch 2.13's `foreach_reduce`). So one rule serves mixed precision, gradient
    accumulation and several groups of parameters to a module: the shard in `.grad` is delivered at
    once, exchanged while backward goes on, and overwritten by the average before backward returns.
    Only shards offloaded to the CPU are delivered at the end of backward.

    `set_all_reduce_hook` would not do: it is called before all this, with one buffer of the
    parameters that have a gradient in this backward, and is not passed which these are.

    In `no_sync` shards of gradients accumulate, and nothing crosses the slow network. The fast one
    still reduces, so that no rank must hold whole gradients. If these fit,
    `module.set_requires_gradient_sync(False)` saves that traffic, too.
    """

    def __init__(
        self, session: Session, module: nn.Module, group: dist.ProcessGroup | None
    ) -> None:
        parameters = trainable(module)
        check_parts_do(session.plan)
        for p in parameters.values():
            if p in _DETACHED:
                _DETACHED.pop(p).let_go(p)
        super().__init__(session, parameters)
        self._group = group
        first: Any = next(iter(parameters.values()))
        place = map(str, first.device_mesh.get_coordinate())
        session.group_name = f" of shard {'.'.join(place)}"
        # Before pytorch/pytorch#180666 hooks were called while offloaded shards were still copied.
        # (A job on CPUs beside an accelerator looks the same here, and delivers late, too.)
        self._offloaded = session.device.type == "cpu" and torch.accelerator.is_available()

    def launch(self) -> None:
        """Begin the exchange."""
        self.fill()
        super().launch()

    def fill(self) -> None:
        """Set gradients that are missing to zeros, also of empty shards: torch's clipping needs
        equally many on all ranks."""
        _fill(self._parameters.values())

    def close(self) -> None:
        """Remove the hooks, and average replicas densely from now on: with fully_shard alone they
        would drift apart."""
        if self._hooks:
            super().close()
            DenseAverage(self._parameters.values(), self._group)

    def _gradient(self, name: str) -> Tensor | None:
        gradient = self._parameters[name].grad
        return None if gradient is None else shard_of(gradient)

    def part_of(self, plan: Plan) -> Plan:
        """Returns another rank's plan for this rank's shards; raises UsageError if a strategy
        needs whole matrices."""
        check_parts_do(plan)
        own = [p for bucket in self._session.plan.buckets for p in bucket.parameters]
        return plan.of_parts(own, self._parameters)

    def _deliver(self, name: str, gradient: Tensor) -> None:
        if self._session.on_part is not None:
            self._session.on_part(name, gradient)
        if not self._offloaded and name in self._session.parameters:
            super()._deliver(name, gradient)

    def _after_backward(self, callback: Callable[[], None]) -> None:
        """Queue a callback after fully_shard's final one, which reduces gradients that no hook in
        the backward pass has reached."""
        after_last_words(callback)


class DenseAverage:
    """Averages gradients over the replicas after each backward, in one order on all ranks, from a
    model's detach until it is attached again. The parameters' hooks keep it alive."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None
    ) -> None:
        self._group = group
        self._backward: weakref.ref[Any] | None = None  # the one under way, by its callback
        self._hooks: Any = WeakIdKeyDictionary()
        for p in parameters:
            hook = p.register_post_accumulate_grad_hook(Hook(self._on_gradient))  # type: ignore[no-untyped-call]
            self._hooks[p] = hook
            _DETACHED[p] = self

    def let_go(self, parameter: nn.Parameter) -> None:
        """Stop averaging a parameter, as it is attached again."""
        self._hooks.pop(parameter).remove()

    def _on_gradient(self, parameter: Tensor) -> None:
        if self._backward is None or self._backward() is None:  # none under way, or it was aborted
            callback = partial(self._average)
            self._backward = weakref.ref(callback)
            after_last_words(callback)

    def _average(self) -> None:
        self._backward = None
        parameters = list(self._hooks)
        _fill(parameters)
        for shard in (shard_of(p.grad) for p in parameters):
            if shard.numel():
                shard.div_(dist.get_world_size(self._group))
                dist.all_reduce(shard, group=self._group)


_DETACHED: Any = WeakIdKeyDictionary()
"""Maps a parameter, weakly held, to the DenseAverage that averages its gradient."""


def sharded_parameters(
    module: nn.Module, group: dist.ProcessGroup | None, clip_norm: float | None
) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters of which this rank keeps a shard, as all ranks of the group
    do.

    A parameter with fewer rows than the shard group has ranks has no shard on some of them: these
    leave it out. Reshards the module. Not collective.

    Raises:
        UsageError: a parameter is not sharded, or is sharded over ranks of the group itself; or
            clip_norm or sparse embeddings need whole gradients.
    """
    if clip_norm is not None:
        raise UsageError(
            f"clip_norm cannot be used with fully_shard, as it needs whole gradients; got "
            f"{clip_norm}. Leave it out, and call torch.nn.utils.clip_grad_norm_ after backward()."
        )
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise UsageError(
                f"fully_shard reduces only dense gradients; those of '{name}' are sparse. Use "
                "sparse=False, or DistributedDataParallel."
            )
    parameters = resharded(module)
    ranks = set(dist.get_process_group_ranks(group or dist.group.WORLD)) - {dist.get_rank()}
    for name, p in parameters.items():
        _check_spread(name, p, ranks)
    return {name: p for name, p in parameters.items() if shard_of(p).numel()}


def join_circle(
    parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None,
    timeout_seconds: float,
) -> Performer:  # fmt: skip
    """Returns a performer over all ranks that keep parts of these parameters, in every replica: a
    plan changes on all of them at once, as they wait for each other in every step. Collective over
    all of them. group: the replicate group. The new group stays until the process ends: torch
    names subgroups by their number, so after a removal a name could occur twice."""
    meshes = list(dict.fromkeys(cast(Any, p).device_mesh for p in parameters.values()))
    replicas = group or dist.group.WORLD
    assert replicas is not None
    own = " ".join(str(rank) for mesh in meshes for rank in mesh.mesh.flatten().tolist())
    texts = stored_texts(own, replicas, timeout_seconds)
    ranks = sorted({int(rank) for text in texts for rank in text.split()})
    if len(ranks) < dist.get_world_size():
        for along in (replicas, *(part for mesh in meshes for part in mesh.get_all_groups())):
            count_alike(along, timeout_seconds)
    device = device_of(parameters)
    return Performer(make_group(None, timeout_seconds, device, ranks, alone=True), None, device)


def check_parts_do(plan: Plan) -> None:
    """Raise UsageError if a strategy needs whole matrices."""
    for strategy in plan.strategies:
        if strategy.feedback is not None and strategy.feedback.rule == "orthogonal":
            raise UsageError(
                f"'{strategy}' needs whole matrices; fully_shard leaves shards. Replicate the "
                "model, or attach 'lloyd(2)+adam | allgather' and use gradwire.optim.AdamW."
            )


def _check_spread(name: str, parameter: Any, replicas: set[int]) -> None:
    """Raise UsageError unless the parameter is sharded, over other ranks than its replicas."""
    if not is_shard(parameter):
        raise UsageError(
            "all trainable parameters of a sharded model must be sharded; "
            f"'{name}' is not, so it would not be averaged over the shard group. Call fully_shard "
            "on the whole model, without ignored_params, or freeze it."
        )
    mesh = parameter.device_mesh
    for dim, placement in enumerate(parameter.placements):
        along = dist.get_process_group_ranks(mesh.get_group(dim))
        if placement.is_replicate() and replicas.intersection(along):
            raise UsageError(
                "replicas must be averaged by gradwire, not by torch; "
                f"'{name}' was sharded over {mesh}, so torch averages it, uncompressed, over "
                f"ranks {along} first. Call fully_shard with mesh=mesh['shard']."
            )
    both = sorted(replicas.intersection(mesh.mesh.flatten().tolist()))
    if both:
        raise UsageError(
            "the ranks of process_group must be replicas, which keep the same shards; "
            f"'{name}' is sharded over {mesh}, and process_group has ranks {both} of it. "
            "Pass process_group=mesh['replicate'].get_group()."
        )


@torch.no_grad()
def _fill(parameters: Iterable[nn.Parameter]) -> None:
    """Set gradients that are missing to zeros."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
