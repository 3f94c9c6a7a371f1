"""Lightning's Trainer: the strategy attaches, and keeps residuals beside each checkpoint. And
Fabric: the loop is the user's, the wrapper is Fabric's. Ranks import both once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn
from trainers import (
    ACCUMULATE,
    LAWS,
    SCALER_LAW,
    Job,
    Trained,
    launched,
    loader,
    needs,
    net,
    sgd,
    trained,
)

needs("lightning")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("pair"), timeout_seconds=240.0) as ranks:
        yield ranks


# -- Fabric, before the Trainer's jobs change what warns ------------------------------------------


def train_by_fabric(job: Job) -> Trained:
    import lightning
    from lightning.fabric.plugins import MixedPrecision

    from gradwire.training.integrations import load, save
    from gradwire.training.integrations.lightning import attach

    launched()
    fabric = lightning.Fabric(
        accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed" if job.half else None,
        plugins=[MixedPrecision("16-mixed", "cpu")] if job.scaled else [],
    )  # fmt: skip
    fabric.launch()
    inner = net()
    model, optimizer = fabric.setup(inner, sgd(inner, job))
    batches = fabric.setup_dataloaders(loader())
    told = list[dict[str, Any]]()
    fabric.log_dict = lambda metrics, step=None: told.append(dict(metrics))
    handle = attach(fabric, model, job.plan, timeout_seconds=30.0)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if job.resume:
        fabric.load(f"{job.folder}/0/state.ckpt", state)
        load(handle, f"{job.folder}/0")
    for epoch in range(int(job.resume), job.epochs):
        for i, (x, y) in enumerate(batches):
            waits = i % ACCUMULATE < ACCUMULATE - 1
            with fabric.no_backward_sync(model, enabled=waits):
                out = inner(x) if job.silent else model(x)
                fabric.backward(nn.functional.cross_entropy(out, y) / ACCUMULATE)
            if not waits:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
                fabric.log_dict({"epoch": epoch}, step=i)
        fabric.save(f"{job.folder}/{epoch}/state.ckpt", state)
        save(handle, f"{job.folder}/{epoch}")
        fabric.barrier()
    assert job.silent or all(own["gradwire/step_seconds"] > 0 for own in told), told
    end = trained(model, handle)
    handle.detach()
    return end


@pytest.mark.parametrize("law", [*LAWS, SCALER_LAW])
def test_fabric(pair: Ranks, law: Callable[..., None], tmp_path: Path) -> None:
    law(pair, train_by_fabric, tmp_path)


# -- Trainer --------------------------------------------------------------------------------------


def trainer_of(job: Job, *callbacks: Any) -> Any:
    """A Lightning Trainer and its module."""
    import warnings

    import lightning
    from lightning.fabric.utilities.warnings import PossibleUserWarning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins import MixedPrecision

    from gradwire.training.integrations.lightning import GradwireStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.automatic_optimization = not job.silent

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            if job.silent:  # not self.manual_backward(loss)
                loss.backward()
                self.optimizers().step()
            return loss

        validation_step = training_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self, job)

    launched()
    options: dict[str, Any] = {}
    # Warnings: torch 2.13's about Lightning's use of it, and Lightning's about so small a job.
    warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
    warnings.simplefilter("ignore", PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*(exists and is not empty|no .val_dataloader)")
    if not job.silent:
        options |= {"accumulate_grad_batches": ACCUMULATE, "gradient_clip_val": 0.5}
    if job.scaled:
        options |= {"plugins": [MixedPrecision("16-mixed", "cpu")]}
    checkpoint = ModelCheckpoint(job.folder, "{epoch}", save_top_k=1, save_last="link")
    strategy = GradwireStrategy(job.plan, {"timeout_seconds": 30.0})
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=job.epochs, logger=False,
        precision="bf16-mixed" if job.half else None, callbacks=[*callbacks, checkpoint],
        default_root_dir=job.folder, enable_progress_bar=False, enable_model_summary=False,
        **options,
    )  # fmt: skip
    return trainer, Module()


def train(job: Job) -> Trained:
    trainer, module = trainer_of(job)
    trainer.fit(module, loader(), ckpt_path="last" if job.resume else None)
    return trained(module, trainer.strategy.handle)


@pytest.mark.parametrize("law", [*LAWS, SCALER_LAW])
def test_lightning(pair: Ranks, law: Callable[..., None], tmp_path: Path) -> None:
    law(pair, train, tmp_path)


def logged(job: Job, every: int = 1) -> list[tuple[int, dict[str, float]]]:
    """The rows with gradwire's numbers that a logger gets, and their steps."""
    from lightning.pytorch.loggers import Logger

    found: list[tuple[int, dict[str, float]]] = []

    class Told(Logger):  # type: ignore[misc]
        name, version = "told", "0"

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            found.append((step or 0, metrics))

        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            pass

    trainer, module = trainer_of(job)
    trainer.loggers, trainer.log_every_n_steps = [Told()], every
    trainer.fit(module, loader())
    return [(step, own) for step, own in found if "gradwire/step_seconds" in own]


def test_its_loggers_are_told(pair: Ranks, tmp_path: Path) -> None:
    for found in pair.run(logged, Job(str(tmp_path))):
        assert [step for step, _ in found] == [*range(len(found))]
        assert len(found) >= 2
        assert all(own["gradwire/bytes_sent"] > 0 for _, own in found)
    assert pair.run(logged, Job(str(tmp_path)), 0) == [[], []], "which 0 means"


def files(job: Job) -> list[str]:
    """The files of two epochs, of whose checkpoints the last is kept, of one saved by hand, and of
    weights alone."""
    trainer, module = trainer_of(job)
    trainer.fit(module, loader())
    trainer.save_checkpoint(f"{job.folder}/by-hand.ckpt")
    trainer.save_checkpoint(f"{job.folder}/weights.ckpt", weights_only=True)
    return sorted(str(path.relative_to(job.folder)) for path in Path(job.folder).rglob("*"))


def test_residuals_are_beside_each_checkpoint(pair: Ranks, tmp_path: Path) -> None:
    written = ["gradwire-0-of-2.pt", "gradwire-1-of-2.pt"]
    wanted = [
        "by-hand.ckpt",
        "by-hand.ckpt.gradwire",
        *(f"by-hand.ckpt.gradwire/{name}" for name in written),
        "epoch=1.ckpt",
        "epoch=1.ckpt.gradwire",
        *(f"epoch=1.ckpt.gradwire/{name}" for name in written),
        "last.ckpt",
        "weights.ckpt",
    ]
    assert pair.run(files, Job(str(tmp_path), epochs=2)) == [wanted] * 2


def fits_twice(job: Job) -> tuple[float, ...]:
    """Exchanges after each fit and each validation: every `fit` attaches anew, a validation does
    not."""
    trainer, module = trainer_of(job)
    found = []
    for epochs in (1, 2):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module, loader())
        found.append(trainer.strategy.handle.stats()["steps"])
        trainer.validate(module, loader(), verbose=False)
        found.append(trainer.strategy.handle.stats()["steps"])
    return tuple(found)


def test_fit_may_come_twice(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(fits_twice, Job(str(tmp_path))) == [(2.0, 2.0, 2.0, 2.0)] * 2


def after_a_search(job: Job) -> tuple[Trained, list[str]]:
    """Trains after a search for the learning rate, which `fit` begins with and which takes
    steps."""
    from lightning.pytorch.callbacks import LearningRateFinder

    finder = LearningRateFinder(num_training_steps=4, early_stop_threshold=None, update_attr=False)
    trainer, module = trainer_of(job, finder)
    trainer.fit(module, loader())
    assert finder.optimal_lr.results["lr"]
    left = [path.name for path in Path(job.folder).glob(".*")]
    return trained(module, trainer.strategy.handle), left


def test_a_search_for_the_learning_rate_leaves_nothing(pair: Ranks, tmp_path: Path) -> None:
    """The run ends with the bits of one without a search, and no files are left."""
    plain = pair.run(train, Job(str(tmp_path / "plain")))
    searched = pair.run(after_a_search, Job(str(tmp_path / "searched")))
    for (end, left), wanted in zip(searched, plain):
        assert (end.parameters, end.residuals) == (wanted.parameters, wanted.residuals)
        assert left == []
