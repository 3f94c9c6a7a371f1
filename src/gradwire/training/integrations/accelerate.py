"""Hugging Face Accelerate: `handle = attach(accelerator, model, plan)` after `prepare`.

`accelerator.accumulate`, `no_sync`, `clip_grad_norm_` and `autocast` work as without gradwire.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from torch import nn

import gradwire
from gradwire.training.integrations import Numbers, hold_back, load, needing, save

with needing("Hugging Face Accelerate", __name__, "accelerate"):
    from accelerate import Accelerator


def attach(
    accelerator: Accelerator, model: nn.Module,
    plan: str | gradwire.Strategy | gradwire.Plan | Path = "auto", **options: Any,
) -> gradwire.Handle:  # fmt: skip
    """Attach a prepared model, and keep residuals in `save_state` and `load_state`. Collective.

    `register_for_checkpointing(handle)` would write rank 0's residuals only. Here each rank writes
    a file into the checkpoint's folder, until the handle is detached. `accelerator.log` also logs
    the numbers of exchanges.

    Args:
        accelerator: the Accelerator that prepared the model.
        model: the module that `accelerator.prepare` returned.
        plan, options: as in `gradwire.attach`; the scaler of mixed precision is the accelerator's.

    Raises:
        As `gradwire.attach`; UsageError also if Accelerate has a `comm_hook` of its own.
    """
    handle = gradwire.attach(model, plan, **{"scaler": accelerator.scaler, **options})
    hold_back(accelerator, lambda other: handle if other is model else None)

    # Accelerate keeps these hooks even after another handle has replaced this one.
    def on_save(models: Sequence[nn.Module], weights: Sequence[Any], folder: str) -> None:
        if handle.attached:
            save(handle, folder, _name(models, model))

    def on_load(models: Sequence[nn.Module], folder: str) -> None:
        if handle.attached:
            load(handle, folder, _name(models, model))

    accelerator.register_save_state_pre_hook(on_save)
    accelerator.register_load_state_pre_hook(on_load)
    numbers, log = Numbers(handle), accelerator.log

    @wraps(log)
    def log_with(values: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        log({**values, **numbers()}, *args, **kwargs)

    accelerator.log = log_with
    return handle


def _name(models: Sequence[nn.Module], model: nn.Module) -> str:
    """Returns a name with the number of this model's weights in Accelerate: none, _1, _2."""
    inside = set(model.modules())  # Accelerate lists modules as passed to it, without wrappers
    number = next((i for i, m in enumerate(models) if m in inside), 0)
    return f"gradwire_{number}" if number else "gradwire"
