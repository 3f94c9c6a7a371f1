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
"""What belongs to attach: Lightning's strategy and DDP know none of these names."""


class GradwireStrategy(DDPStrategy):
    """Lightning's DDPStrategy, with gradients that travel by a plan.

    A strategy, not a callback: it alone is told a checkpoint's path, on every rank, and can write
    residuals beside it, into `PATH.gradwire/`. And on CPUs Lightning drops `ddp_comm_hook`
    without a word.

    Args:
        plan: as of `gradwire.attach`.
        options: keyword arguments of `gradwire.attach`, as a dictionary; the scaler of mixed
            precision is the trainer's.
        more: the same, as `clip_norm=1.0`, and those of Lightning's DDPStrategy.

    `Trainer.fit` raises what `gradwire.attach` raises, on all ranks.
    """

    handle: gradwire.Handle | None = None
    """Of the attached model, from the beginning of `fit` on; detached, but readable, after it."""

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
        """Collective."""
        super().configure_ddp()
        options = {"scaler": getattr(self.precision_plugin, "scaler", None), **self._options}
        self.handle = gradwire.attach(self.model, self._plan, **options)
        self._numbers = Numbers(self.handle)
        if self._resume_from is not None:
            load(self.handle, self._resume_from)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """What exchanges take goes to the trainer's loggers as often as its own metrics."""
        done = super().optimizer_step(*args, **kwargs)
        module = self.lightning_module
        trainer = None if module is None else module.trainer
        if trainer is not None and self._numbers is not None:
            # As Lightning numbers what it logs: by batches, of which each optimizer has a step.
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
        """Called before the model is wrapped; by tuners, which undo their steps, in `fit`, too."""
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
    """Attach what `fabric.setup(model)` returned. Collective.

    `fabric.save` writes on rank 0 alone; residuals are for `save` and `load` of
    `gradwire.training.integrations`. `fabric.log_dict` logs what exchanges take, too.

    Args:
        fabric: with `strategy="ddp"`.
        model: set up by it.
        plan, options: as of `gradwire.attach`; the scaler of mixed precision is Fabric's.

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
    """last.ckpt may be a link."""
    return f"{os.path.realpath(checkpoint) if os.path.islink(checkpoint) else checkpoint}.gradwire"
