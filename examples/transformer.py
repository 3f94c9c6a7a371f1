"""A language model of 7.3 million parameters with AdamW, on words that follow a rule.

gradwire lab run --hosts 4 --rate 1gbit -- python examples/transformer.py
gradwire lab run --hosts 4 --rate 1gbit -- gradwire profile -o profile.json -- \
    python examples/transformer.py
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire

WORDS, WIDTH, BLOCKS, LENGTH = 8000, 256, 4, 32


class Transformer(nn.Module):
    """Each word is predicted from those before it."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.TransformerEncoder(block, BLOCKS)
        self.head = nn.Linear(WIDTH, WORDS)
        self.later = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, words: Tensor) -> Tensor:
        seen: Tensor = self.blocks(self.words(words), mask=self.later, is_causal=True)
        scores: Tensor = self.head(seen)
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="qsgd(4) | alltoall")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = gradwire.attach(model, arguments.strategy, optimizer=optimizer)

    data = torch.Generator().manual_seed(dist.get_rank())
    began = time.perf_counter()
    for step in range(arguments.steps):
        first = torch.randint(200, (4, 1), generator=data)
        words = (first + 7 * torch.arange(LENGTH + 1)) % WORDS
        scores = model(words[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # returns with the average in .grad
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 19:
            seconds = (time.perf_counter() - began) / (step + 1)
            print(f"step {step + 1:3}  loss {loss.item():.3f}  {1e3 * seconds:.1f} ms a step")
    if dist.get_rank() == 0:
        sent, given = handle.stats()["bytes_sent"], handle.stats()["bytes_given"]
        print(f"{sent:,.0f} bytes sent a step, of {given:,.0f} bytes of gradient")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
