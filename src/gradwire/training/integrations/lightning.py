"""Lightning: `Trainer(strategy=GradwireStrategy(plan))`; Fabric: `attach(fabric, model, plan)`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torch import nn

import gradwire
from gradwire.training.integrations import Numbers, load, needing, save

with needing("Lightning", __name__, "lightning"):
    from lightning.fabric import Fabric
    from lightning.pytorch.strategies import DDPStrategy


_OPTIONS = {
    option.name
    for option in inspect.signature(gradwire.attach).parameters.values()
    if option.kind is option.KEYWORD_ONLY
}
"""Keyword arguments of attach; none is a name that Lightning's strategy or DDP knows."""


class GradwireStrategy(DDPStrategy):
    """Lightning's DDPStrategy, with gradients that are exchanged by a plan.

    Only a strategy, not a callback, gets a checkpoint's path on every rank, to write residuals
    beside it, into `PATH.gradwire/`. Also, Lightning silently drops `ddp_comm_hook` on CPUs.

    Args:
        plan: as in `gradwire.attach`.
        options: keyword arguments of `gradwire.attach`, as a dictionary; the scaler of mixed
            precision is the trainer's.
        more: the same, as `clip_norm=1.0`, and those of Lightning's DDPStrategy.

    `Trainer.fit` raises the errors of `gradwire.attach`, on all ranks.
    """

    handle: gradwire.Handle | None = None
    """The attached model's handle from the start of `fit` on; detached, but readable, after it."""

    def __init__(
        self, plan: str | gradwire.Strategy | gradwire.Plan | Path = "auto",
        options: Mapping[str, Any] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        own = {name: more.pop(name) for name in _OPTIONS & more.keys()}
        super().__init__(**more)
        self._plan, self._options = plan, {**(options or {}), **own}
        self._resume_from: str | None = None
        self._numbers: Numbers | None = None
        self._told_at = -1

    def configure_ddp(self) -> None:
        """Wrap the model in DDP and attach it; load residuals if `fit` resumes. Collective."""
        super().configure_ddp()
        options = {"scaler": getattr(self.precision_plugin, "scaler", None), **self._options}
        self.handle = gradwire.attach(self.model, self._plan, **options)
        self._numbers = Numbers(self.handle)
        if self._resume_from is not None:
            load(self.handle, self._resume_from)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Take a step, and log the numbers of exchanges as often as the trainer logs metrics."""
        done = super().optimizer_step(*args, **kwargs)
        module = self.lightning_module
        trainer = None if module is None else module.trainer
        if trainer is not None and self._numbers is not None:
            # Lightning numbers its metrics by batches, in which each optimizer takes a step.
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
            every = trainer.log_every_n_steps  # 0: never
            if trainer.loggers and every and (step + 1) % every == 0 and step != self._told_at:
                self._told_at = step
                found = self._numbers()
                for logger in trainer.loggers:
                    logger.log_metrics(found, step=step)
        return done

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)
        if self.handle is not None and "optimizer_states" in checkpoint:  # not the weights alone
            save(self.handle, _beside(filepath))

    def load_checkpoint(self, checkpoint_path: str | Path, *args: Any, **kwargs: Any) -> Any:
        """Load residuals, or note the path if the model is not attached yet, as Lightning calls
        this before it wraps the model; tuners, which undo their steps, call it in `fit`, too."""
        checkpoint = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        if self.handle is not None and self.handle.attached:
            load(self.handle, _beside(checkpoint_path))
        else:
            self._resume_from = _beside(checkpoint_path)
        return checkpoint

    def remove_checkpoint(self, filepath: str | Path) -> None:
        super().remove_checkpoint(filepath)
        super().remove_checkpoint(_beside(filepath))

    def teardown(self) -> None:
        if self.handle is not None:
            self.handle.detach()
        self._resume_from = None
        super().teardown()


def attach(
    fabric: Fabric, model: nn.Module,
    plan: str | gradwire.Strategy | gradwire.Plan | Path = "auto", **options: Any,
) -> gradwire.Handle:  # fmt: skip
    """Attach the module that `fabric.setup(model)` returned. Collective.

    `fabric.save` writes on rank 0 alone; save and load residuals by `save` and `load` of
    `gradwire.training.integrations`. `fabric.log_dict` also logs the numbers of exchanges.

    Args:
        fabric: a Fabric with `strategy="ddp"`.
        model: the module that it set up.
        plan, options: as in `gradwire.attach`; the scaler of mixed precision is Fabric's.

    Raises:
        As `gradwire.attach`.
    """
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    handle = gradwire.attach(model, plan, **{"scaler": scaler, **options})
    numbers, log = Numbers(handle), fabric.log_dict

    @wraps(log)
    def log_with(metrics: Mapping[str, Any], step: int | None = None) -> None:
        log({**metrics, **numbers()}, step)

    fabric.log_dict = log_with
    return handle


def _beside(checkpoint: str | Path) -> str:
    """Returns the folder for residuals beside a checkpoint; last.ckpt may be a symbolic link."""
    return f"{os.path.realpath(checkpoint) if os.path.islink(checkpoint) else checkpoint}.gradwire"
