"""Hugging Face's Trainer: attached when it wraps the model, saved and resumed with its folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import raised
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trainers import (
    ACCUMULATE,
    BATCH,
    DGC,
    LAWS,
    ROWS,
    SCALER_LAW,
    STEPS_PER_EPOCH,
    Job,
    Net,
    Rows,
    Trained,
    launched,
    needs,
    sgd,
    trained,
)

needs("transformers")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("pair"), timeout_seconds=240.0) as ranks:
        yield ranks


class Classifier(Net):
    """A model as Trainer needs it: it takes arguments by name and returns a loss."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


class Named(Rows):
    def __getitem__(self, i: int) -> Any:
        return {"x": self.x[i], "labels": self.y[i]}


def trainer_of(job: Job, model: nn.Module | None = None, **options: Any) -> Any:
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments

    class Unwrapped(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: nn.Module, inputs: Any, **_: Any) -> Tensor:
            loss: Tensor = self.model(**inputs)["loss"]
            return loss

    AcceleratorState._reset_state(reset_partial_state=True)  # of the job before in this process
    launched()
    arguments = TrainingArguments(
        job.folder, use_cpu=True, bf16=job.half, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATE,
        num_train_epochs=job.epochs, lr_scheduler_type="constant", max_grad_norm=0.5,
        save_strategy="epoch", save_total_limit=1, **options,
    )  # fmt: skip
    model = model or classifier()
    kind = Unwrapped if job.silent else Trainer
    trainer = kind(model, arguments, train_dataset=Named(), optimizers=(sgd(model, job), None))
    if job.scaled:  # on CPUs Accelerate has no scaler
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
    return trainer


def train(job: Job) -> Trained:
    from gradwire.training.integrations.transformers import attach

    trainer = trainer_of(job)
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train(resume_from_checkpoint=job.resume)
    assert callback.handle is not None
    end = trained(trainer.model, callback.handle)
    callback.handle.detach()
    return end


@pytest.mark.parametrize("law", [*LAWS, SCALER_LAW])
def test_transformers(pair: Ranks, law: Callable[..., None], tmp_path: Path) -> None:
    law(pair, train, tmp_path)


def test_one_process_exchanges_once_per_step(one: Ranks, tmp_path: Path) -> None:
    """The Trainer does not wrap the model of one process."""
    (end,) = one.run(train, Job(str(tmp_path), DGC, momentum=0.0))
    assert end.exchanges == ROWS / BATCH / ACCUMULATE


def twice(job: Job) -> tuple[float, float]:
    """The same Trainer trains again in the same DDP, and then in a new one."""
    from gradwire.training.integrations.transformers import attach

    trainer = trainer_of(job)
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    trainer.train()
    assert callback.handle is not None
    first = callback.handle.stats()["steps"]
    trainer.model_wrapped = trainer.model  # as after a search for hyperparameters
    trainer.train()
    again = callback.handle.stats()["steps"]
    callback.handle.detach()
    return first, again


def test_a_trainer_may_train_again(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(twice, Job(str(tmp_path))) == [(4.0, 2.0)] * 2


def logged(job: Job) -> list[dict[str, Any]]:
    from gradwire.training.integrations.transformers import attach

    trainer = trainer_of(job, logging_steps=1, logging_strategy="steps")
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    assert callback.handle is not None
    callback.handle.detach()
    history: list[dict[str, Any]] = trainer.state.log_history
    return history


def test_its_logger_is_told_with_each_loss(pair: Ranks, tmp_path: Path) -> None:
    for history in pair.run(logged, Job(str(tmp_path))):
        of_steps = [logs for logs in history if "loss" in logs]
        assert len(of_steps) >= 2
        assert all(logs["gradwire/step_seconds"] > 0 for logs in of_steps)
        assert all(logs["gradwire/bytes_sent"] > 0 for logs in of_steps)
        assert "gradwire/step_seconds" not in history[-1], "the end of training is no step"


def weights_alone(job: Job) -> list[str]:
    from gradwire.training.integrations.transformers import attach

    trainer = trainer_of(job)
    trainer.args.save_only_model = True
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    assert callback.handle is not None
    callback.handle.detach()
    return [path.name for path in Path(job.folder).glob("*/gradwire*")]


def test_weights_alone_have_no_residuals(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(weights_alone, Job(str(tmp_path))) == [[], []]


def detached_between(job: Job) -> tuple[str, float]:
    """The DDP of the first training cannot take another hook; a new DDP can."""
    from gradwire.training.integrations.transformers import attach

    trainer = trainer_of(job)
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    assert callback.handle is not None
    callback.handle.detach()
    error = raised(trainer.train)
    trainer.model_wrapped = trainer.model
    trainer.train()
    again = callback.handle.stats()["steps"]
    callback.handle.detach()
    return error, again


def test_after_detach_training_attaches_anew(pair: Ranks, tmp_path: Path) -> None:
    """Training attaches anew or says why it cannot; it never trains without exchanges."""
    for error, again in pair.run(detached_between, Job(str(tmp_path))):
        assert "one communication hook" in error
        assert again == 2.0


def detached_in_training(job: Job) -> list[str]:
    from transformers import TrainerCallback

    from gradwire.training.integrations.transformers import attach

    class Detaches(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.epoch == 1:
                callback.handle.detach()

    trainer = trainer_of(job)
    callback: Any = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.add_callback(Detaches())
    trainer.train()
    return sorted(path.name for path in Path(job.folder).glob("*/gradwire*"))


def test_checkpoints_after_detach_have_no_residuals(pair: Ranks, tmp_path: Path) -> None:
    """Two checkpoints are written, and the last is kept."""
    assert pair.run(detached_in_training, Job(str(tmp_path), epochs=2)) == [[], []]


def without_callback(job: Job) -> tuple[int, bool]:
    """The exchanges of two trainings, the second without the callback, and what is attached."""
    from gradwire.training.integrations.transformers import attach

    trainer = trainer_of(job)
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    trainer.remove_callback(callback)
    trainer.train()
    assert callback.handle is not None
    steps, attached = callback.handle.step, callback.handle.attached
    callback.handle.detach()
    return steps, attached


def test_a_removed_callback_leaves_the_model(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(without_callback, Job(str(tmp_path))) == [(STEPS_PER_EPOCH, False)] * 2


def beside_a_later_one(job: Job) -> list[str]:
    """Rank 0 removes the first checkpoint as it is written: another is later by its time."""
    from gradwire.training.integrations.transformers import attach

    later = Path(job.folder) / "checkpoint-9"
    later.mkdir(exist_ok=True)
    os.utime(later, (4e9, 4e9))
    trainer = trainer_of(job)
    own_save = trainer._save_rng_state

    def save(folder: str) -> None:
        """Trainer's rank 0 may remove the folder while another rank writes its dice there."""
        own_save(folder)
        dist.barrier()

    trainer._save_rng_state = save
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    assert callback.handle is not None
    callback.handle.detach()
    return sorted(path.name for path in Path(job.folder).iterdir())


def test_a_checkpoint_that_the_trainer_removes_stays_away(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(beside_a_later_one, Job(str(tmp_path))) == [["checkpoint-9"]] * 2


class Deep(nn.Module):
    """Blocks that Trainer can tell to recompute; the input of each needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList(nn.Linear(20, 20) for _ in range(4)), Classifier()
        self.recompute: dict[str, Any] | None = None

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any], **_: Any
    ) -> None:
        self.recompute = activation_checkpointing_kwargs

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, **self.recompute) if self.recompute else block(x)
        loss: dict[str, Tensor] = self.head(x, labels)
        return loss


def recomputed(job: Job, **options: Any) -> Trained:
    """Trains with DDP buckets that do not end where the blocks do. DDP allows reentrant
    checkpointing only if it does not look for unused parameters."""
    from gradwire.training.integrations.transformers import attach

    ddp = {"ddp_bucket_cap_mb": 0.006, "ddp_find_unused_parameters": False}
    trainer = trainer_of(job, Deep(), **ddp, **options)
    callback = attach(trainer, job.plan, timeout_seconds=30.0)
    trainer.train()
    assert callback.handle is not None
    end = trained(trainer.model, callback.handle)
    callback.handle.detach()
    return end


def both(folder: str) -> list[Trained]:
    """Two runs, without activation checkpointing and with it."""
    how = {"activation_checkpointing_kwargs": {"use_reentrant": True}}
    return [
        recomputed(Job(folder)),
        recomputed(Job(folder), activation_checkpointing=True, **how),
    ]


def test_reentrant_checkpointing(pair: Ranks, tmp_path: Path) -> None:
    """Reentrant checkpointing gives the same bits as none, with as many exchanges."""
    for without, reentrant in pair.run(both, str(tmp_path)):
        assert reentrant.exchanges == STEPS_PER_EPOCH
        assert reentrant == without
