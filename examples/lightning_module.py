"""A LightningModule, trained by Lightning's Trainer with a strategy of gradwire.

torchrun --nproc-per-node 2 examples/lightning_module.py --folder /tmp/run
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.training.integrations.lightning import GradwireStrategy


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", help="of checkpoints; goes on from the last one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    lightning.seed_everything(0, verbose=False)
    keeps = ModelCheckpoint(arguments.folder, save_last=True) if arguments.folder else None
    strategy = GradwireStrategy("topk(0.01)+ef | allgather")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_steps=arguments.steps,
        accumulate_grad_batches=2, gradient_clip_val=1.0, callbacks=[keeps] if keeps else [],
        enable_checkpointing=keeps is not None, logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), batches(), ckpt_path="last" if keeps else None)

    told = strategy.handle.stats()
    if trainer.is_global_zero:
        print(f"{told['steps']:.0f} exchanges of {told['bytes_sent']:,.0f} bytes each")
    dist.destroy_process_group()


def batches() -> DataLoader[tuple[Tensor, ...]]:
    """Returns the same batches on all ranks: Lightning distributes them."""
    x, teacher = torch.randn(2048, 64), torch.randn(64, 10)
    return DataLoader(TensorDataset(x, (x @ teacher).argmax(1)), batch_size=16, shuffle=True)


if __name__ == "__main__":
    main()
