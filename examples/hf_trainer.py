"""Hugging Face's Trainer: a tiny language model, made here, learns to count.

torchrun --nproc-per-node 2 examples/hf_trainer.py --folder /tmp/run
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from gradwire.training.integrations.transformers import attach

WORDS, LENGTH = 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", help="of checkpoints; goes on from the last one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.folder or tempfile.mkdtemp()

    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    settings = TrainingArguments(
        folder, max_steps=arguments.steps, per_device_train_batch_size=8,
        gradient_accumulation_steps=2, learning_rate=2e-3, lr_scheduler_type="constant",
        save_steps=arguments.steps, save_total_limit=1, use_cpu=True, ddp_backend="gloo",
        ddp_find_unused_parameters=False, report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=Counting())
    callback = attach(trainer, "qsgd(4) | alltoall")
    last = get_last_checkpoint(folder) if Path(folder).exists() else None
    done = trainer.train(resume_from_checkpoint=last)

    told = callback.handle.stats()
    if trainer.is_world_process_zero():
        print(f"loss {done.training_loss:.3f}")
        print(f"{told['steps']:.0f} exchanges of {told['bytes_sent']:,.0f} bytes each")
    dist.destroy_process_group()


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences that count up: each word is the one after the word before it."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        words = (torch.arange(LENGTH) + 7 * i) % WORDS
        return {"input_ids": words, "labels": words}


if __name__ == "__main__":
    main()
