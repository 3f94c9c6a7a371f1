"""Microseconds that a bucket's exchange takes: all of it, on one rank.

Gradients are handed over, encoded, sent to no other rank, and summed: 64 parameters of 4,096
elements, each in a bucket of its own, and eight in a bucket. It reports the tenth percentile of
the steps, so that other load on the machine matters little. To compare two versions of the source,
run it with each in turn: PYTHONPATH names the other one.
"""

from __future__ import annotations

import tempfile
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn

import gradwire

PARAMETERS, ELEMENTS, STEPS, SETTLED = 64, 4096, 300, 20
TEXTS = (
    "dgc(0.01) | allgather", "topk(0.01)+ef | allgather", "int8+ef | allgather",
    "bf16 | allreduce", "none | allreduce",
)  # fmt: skip
PER_BUCKET = (1, 8)


def measured(text: str, per_bucket: int) -> float:
    """Returns seconds for each bucket. Needs a process group of one rank."""
    module = nn.Module()
    for i in range(PARAMETERS):
        module.register_parameter(f"p{i}", nn.Parameter(torch.zeros(1, ELEMENTS)))
    handle = gradwire.attach(module, text, bucket_bytes=4 * ELEMENTS * per_bucket, lanes=1)
    seconds = []
    for _ in range(STEPS):
        for p in module.parameters():  # a new tensor, as backward gives
            p.grad = torch.randn(1, ELEMENTS)
        began = perf_counter()
        handle.synchronize()
        seconds.append(perf_counter() - began)
    handle.detach()
    settled = sorted(seconds[SETTLED:])
    return settled[len(settled) // 10] / (PARAMETERS // per_bucket)


def main() -> None:
    """Prints a row for each strategy."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            heads = "".join(f"{n} in a bucket".rjust(16) for n in PER_BUCKET)
            print(f"{'µs for each bucket':<28}{heads}")
            for text in TEXTS:
                times = [1e6 * measured(text, n) for n in PER_BUCKET]
                print(f"{text:<28}" + "".join(f"{x:>16.1f}" for x in times), flush=True)
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
