"""Checks that a model can be attached, made before anything else is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import UninitializedParameter

from gradwire.buckets import Bucket
from gradwire.errors import PlanError, UsageError
from gradwire.runtime.contexts import sends_from_host
from gradwire.runtime.host_copies import CPU
from gradwire.runtime.torch_dist import backend_of
from gradwire.strategy import Strategy
from gradwire.training.attached import is_attached
from gradwire.training.documents import SEED
from gradwire.training.session import Settings
from gradwire.training.trainable import is_sharded
from gradwire.warmup import Warmup


def check_ready(
    module: nn.Module, process_group: object, lanes: int | None, settings: Settings,
    scaler: object = None,
) -> None:  # fmt: skip
    """Raise UsageError unless the module and the job can be attached, and numbers are in range."""
    check_started()
    check_module(module)
    if hasattr(module, "set_requires_gradient_sync") and not is_sharded(module):
        raise UsageError(
            "attach takes a plain module, DistributedDataParallel, or a fully_shard module; this "
            "one is averaged by torch's replicate(). Attach it without replicate()."
        )
    if settings.clip_overlap and settings.clip_norm is None:
        raise UsageError(
            "clip_overlap needs a clip_norm; got none. Pass for example clip_norm=1.0, or neither."
        )
    if settings.warmup is not None and not isinstance(settings.warmup, Warmup):
        raise UsageError(
            "warmup must be a gradwire.Warmup or its number of steps; got "
            f"{settings.warmup!r}. Pass for example warmup=1000."
        )
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise UsageError(
            f"scaler must be the torch.amp.GradScaler of the loss; got {scaler!r}. Pass it, or "
            "leave it out."
        )
    told = settings.optimizer
    is_one = callable(getattr(told, "step", None)) and not isinstance(told, type)
    if told is not None and not isinstance(told, str) and not is_one:
        raise UsageError(
            f"optimizer must be one optimizer, or its name; got {told!r}. Pass what steps the "
            "model, for example optimizer='adamw', or leave it out."
        )
    _check_numbers(lanes, settings)
    check_group(process_group)


def _check_numbers(lanes: int | None, settings: Settings) -> None:
    """Raise UsageError for a number that is out of range."""
    numbers = {
        "timeout_seconds": settings.timeout_seconds, "lanes": lanes,
        "clip_norm": settings.clip_norm, "check_every": settings.check_every,
    }  # fmt: skip
    for name, value in numbers.items():
        is_whole = name in ("lanes", "check_every")
        fits = isinstance(value, int | float) and value > 0
        fits = fits and not (is_whole and isinstance(value, float))
        if name == "timeout_seconds":  # torch takes no infinity
            fits = fits and value != math.inf
        elif value is None:
            continue
        if not fits:
            raise UsageError(
                f"{name} must be a {'whole ' * is_whole}number above 0; got {value!r}. Leave it "
                "out for the default."
            )
    if not SEED.holds([settings.seed]):  # a state with it could be saved, and not loaded
        raise UsageError(
            "seed must be a whole number of at most 64 bits; got "
            f"{settings.seed!r}. Pass for example seed=0."
        )


def check_started() -> None:
    """Raise UsageError unless torch.distributed is initialized."""
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "attach needs torch.distributed; it is not initialized. Call "
            "torch.distributed.init_process_group() first and start the job with torchrun."
        )


def check_module(module: object) -> None:
    """Raise UsageError unless it is a module."""
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"attach takes an nn.Module; got {type(module).__name__}. Pass the model itself."
        )


def check_group(group: Any) -> None:
    """Raise UsageError unless this rank is in the group: to others new_group returns no group."""
    if group is None or isinstance(group, dist.ProcessGroup):
        if dist.get_rank(group) >= 0:
            return
    elif group != dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError(
            f"process_group must be a torch.distributed.ProcessGroup; got {group!r}. Pass what "
            "torch.distributed.new_group() returned, or leave it out."
        )
    raise UsageError(
        "attach must be called only by the ranks of process_group; rank "
        f"{dist.get_rank()} is not in it. Call attach() there only, or leave process_group out."
    )


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise UsageError if one is attached already, or has a dtype that is not exchanged."""
    for name, p in parameters.items():
        if is_attached(p):
            raise UsageError(
                f"a parameter can be attached only once; '{name}' is already. Call detach() on "
                "the first handle, or gradwire.detach(module) if you did not keep it."
            )
        if p.is_meta:
            raise UsageError(
                f"a model that is attached must have weights; '{name}' is on the meta device. "
                "Call module.to_empty(device=…), load or initialize the weights, then attach."
            )
        if isinstance(p, UninitializedParameter):
            raise UsageError(
                f"a model that is attached must know its shapes; '{name}' has none yet, as lazy "
                "modules get theirs from a batch. Run one batch through the model, then attach."
            )
        if p.dtype not in _DTYPES:
            raise UsageError(
                "gradwire exchanges gradients of float32, bfloat16 and float16, and uncompressed "
                f"ones of float64; '{name}' is {p.dtype}. Convert it, freeze it, or keep a "
                "complex parameter as the real one of torch.view_as_real."
            )


def device_of(parameters: Mapping[str, nn.Parameter]) -> torch.device:
    """Returns the device of all parameters; raises UsageError if there are several, or none."""
    devices = {p.device for p in parameters.values()}
    if not devices:
        raise UsageError(
            "a model must have trainable parameters on every rank; found none on this rank. "
            "Attach a module that trains, or shard it over fewer ranks."
        )
    if len(devices) != 1:
        found = ", ".join(map(str, devices))
        raise UsageError(
            f"all trainable parameters of a model must be on one device; found {found}. "
            "Move the module to one device before attaching."
        )
    return next(iter(devices))


def likely_device(module: nn.Module) -> torch.device:
    """Returns the device that other ranks are likely to use, where this rank's model is wrong."""
    devices = (p.device for p in module.parameters())
    return next((d for d in devices if d.type not in ("cpu", "meta")), CPU)


def check_lanes(lanes: int | None, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raise UsageError for several lanes of NCCL: nothing orders the collectives of two
    communicators on one device, so they can deadlock."""
    group = group or dist.group.WORLD
    if lanes is not None and lanes > 1 and group and backend_of(group, device) == "nccl":
        raise UsageError(
            f"with NCCL only one lane can issue a device's collectives; got lanes={lanes}. Leave "
            "lanes out: encoding overlaps communication all the same."
        )


def not_carried(
    pairs: Iterable[tuple[Bucket | None, Strategy]], group: dist.ProcessGroup, device: torch.device
) -> Strategy | None:
    """Returns the first strategy that sends from host memory, if the group carries device tensors
    only; else None."""
    if device.type == "cpu" or backend_of(group, CPU):
        return None
    return next((s for bucket, s in pairs if sends_from_host(s, bucket)), None)


def check_carried(
    pairs: Iterable[tuple[Bucket | None, Strategy]], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Raise PlanError if there is such a strategy; see `not_carried`."""
    if one := not_carried(pairs, group, device):
        raise PlanError(
            f"'{one}' sends from CPU memory, which the backend {backend_of(group, device)} alone "
            "cannot, and gradwire makes CPU groups only in attach. Attach a plan that has this "
            'strategy, or use init_process_group("cpu:gloo,cuda:nccl").'
        )
