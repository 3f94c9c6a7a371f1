"""Ray Train: two workers, each with its part of a checkpoint. Ray starts them itself.

python examples/ray_train.py --folder /tmp/run
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

from gradwire.training.integrations import load, save
from gradwire.training.integrations.ray import prepare_model


def loop(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    model, handle = prepare_model(net, "topk(0.01)+ef | allgather")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(f"{folder}/state.pt", weights_only=True)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
            load(handle, folder)
    teacher = torch.randn(64, 10)
    rank = ray.train.get_context().get_world_rank()
    data = torch.Generator().manual_seed(rank)
    for _ in range(config["steps"]):
        x = torch.randn(32, 64, generator=data)
        loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as folder:
        save(handle, folder)  # on every worker: Ray joins their folders
        if rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"{folder}/state.pt")
        told = handle.stats() | {"loss": loss.item()}
        ray.train.report(told, checkpoint=Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", help="where Ray keeps its results")
    arguments = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        loop, train_loop_config={"steps": arguments.steps},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=arguments.folder or tempfile.mkdtemp()),
    )  # fmt: skip
    told = trainer.fit().metrics
    print(f"loss {told['loss']:.3f}")
    print(f"{told['steps']:.0f} exchanges of {told['bytes_sent']:,.0f} bytes each")
    ray.shutdown()


if __name__ == "__main__":
    main()
