"""Hugging Face Trainer: `attach(trainer, plan)` before `trainer.train()`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torch import nn

import gradwire
from gradwire.training.integrations import Numbers, hold_back, load, needing, save

with needing("Hugging Face's Trainer", __name__, "'transformers[torch]'"):
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint


class GradwireCallback(TrainerCallback):
    """Attaches once the trainer has wrapped its model, keeps residuals in checkpoints, and logs
    the numbers of exchanges with the loss."""

    handle: gradwire.Handle | None = None
    """The attached model's handle from the start of training on; stays attached after it."""

    def __init__(
        self, trainer: Trainer, plan: str | gradwire.Strategy | gradwire.Plan | Path,
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.resume_from: str | bool | None = None
        self._trainer, self._plan, self._options = trainer, plan, dict(options)
        self._attached: nn.Module | None = None
        self._numbers: Numbers | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Attach the wrapped model, and load residuals if training resumes. Collective."""
        self._attach(self._trainer.model_wrapped)
        assert self.handle is not None
        if self.resume_from is True:
            self.resume_from = get_last_checkpoint(args.output_dir)
        if self.resume_from:
            load(self.handle, str(self.resume_from))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write residuals, unless rank 0 has removed this very checkpoint: the Trainer keeps the
        latest by its files' times, or its number, and a former run's may be later. Collective."""
        elsewhere = args.save_only_model or state.is_hyper_param_search
        if self.handle is not None and self.handle.attached and not elsewhere:
            self._trainer.accelerator.wait_for_everyone()
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if folder.exists():
                save(self.handle, folder)

    def _attach(self, model: nn.Module) -> None:
        """Attach the model, again if another train() has made a new DDP of the same parameters.

        After `handle.detach()` a new DDP is needed, or gradwire.attach raises, so that nothing
        trains silently without exchanges.
        """
        if self.handle is not None and self.handle.attached:
            if model is self._attached and self._numbers is not None:
                self._numbers.forget_now()
                return
            self.handle.detach()
        options = {"scaler": self._trainer.accelerator.scaler, **self._options}
        self.handle = gradwire.attach(model, self._plan, **options)
        self._attached, self._numbers = model, Numbers(self.handle)

    def leave_if_removed(self) -> None:
        """Detach if the trainer has this callback no more: nothing would save residuals."""
        if self.handle is not None and self not in self._trainer.callback_handler.callbacks:
            self.handle.detach()

    def with_numbers(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the trainer's log of steps with the numbers of exchanges added; other logs as
        they are."""
        is_of_steps = self._numbers is not None and "loss" in logs
        return {**logs, **(self._numbers() if is_of_steps and self._numbers else {})}


def attach(
    trainer: Trainer, plan: str | gradwire.Strategy | gradwire.Plan | Path = "auto", **options: Any
) -> GradwireCallback:
    """Exchange a Trainer's gradients by a plan, from its next `train()` on. Not collective.

    Args:
        trainer: a `transformers.Trainer`, or an instance of a subclass.
        plan, options: as in `gradwire.attach`; the scaler of mixed precision is the trainer's.

    Returns:
        The callback that was added; its `handle` is set once training has begun. `train()` then
        raises the errors of `gradwire.attach`, on all ranks.
    """
    callback = GradwireCallback(trainer, plan, options)
    trainer.add_callback(callback)
    hold_back(trainer.accelerator, lambda _: callback.handle)
    train = trainer.train

    # Callbacks are not passed the checkpoint from which training resumes.
    @wraps(train)
    def train_from(
        resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        callback.resume_from = resume_from_checkpoint
        callback.leave_if_removed()
        return train(resume_from_checkpoint, *args, **kwargs)

    log = trainer.log

    # Callbacks that report to loggers run before this one.
    @wraps(log)
    def log_with(logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        log(callback.with_numbers(logs), *args, **kwargs)

    trainer.train, trainer.log = train_from, log_with
    return callback
