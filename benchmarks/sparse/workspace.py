"""The memory that a sum of sparse tensors takes beside gradient and result, in lockstep.

    python benchmarks/sparse/workspace.py

Every storage that torch makes is counted while it exists: messages, lists, tables, what arrives.
The result is the peak, a mean over the ranks (they run at the same time), in units of 2 · nnz ·
(value + index): nnz are the non-zeros of the union, which every rank receives. The second step is
measured; what the first one kept is counted, including scratch memory of kernels, but for what
arrived: in a job that of the next step lies in the same buffer. The part of a message's buffer
that is reserved for a denser tensor and never touched is not counted.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import sparsity
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradwire import Strategy, kernels
from gradwire.buckets import Bucket, Parameter
from gradwire.report.table import Table
from gradwire.runtime.context import BucketContext
from gradwire.runtime.lockstep import drive
from gradwire.runtime.message import Inbox
from gradwire.strategy import StepInfo
from gradwire.trace import Trace

WORLD = 8
ELEMENTS = 4e6
PRESETS = ("nmt", "bert", "topk")
MEMBERS = (
    "allgather", "sparcml", "sparcml_split", "sparse_ps", "omnireduce", "union", "zen", "columns",
)  # fmt: skip
BYTES = 8  # of a value and an index


class Alive(TorchDispatchMode):
    """Counts the bytes of all storages that were made inside and are still held, and their
    peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self._known = 0, 0, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            x.untyped_storage()._cdata
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._known:
                    self._count(storage)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def main() -> int:
    torch.set_num_threads(1)
    rows = []
    for member in MEMBERS:
        cells = [
            f"{peak(preset, member):.2f}"
            for preset in PRESETS
            if member != "columns" or preset != "topk"
        ]
        rows.append((member, *cells, *[""] * (len(PRESETS) - len(cells))))
    print(Table(("member", *PRESETS), rows).as_markdown())
    return 0


@torch.no_grad()
def peak(preset: str, member: str) -> float:
    one = sparsity.synthetic(preset, 1, scale=0.01)[0].numel()
    xs = sparsity.synthetic(preset, WORLD, scale=0.01 * ELEMENTS / one)
    union = int(torch.stack([x != 0 for x in xs]).any(0).sum())
    strategy = Strategy.parse(f"nonzero | {member}")
    bucket = Bucket((Parameter("x", tuple(xs[0].shape)),))
    results = [torch.empty(x.numel()) for x in xs]
    contexts = [BucketContext(strategy, bucket, r, WORLD, {}) for r in range(WORLD)]
    with Alive() as alive:
        for step in range(2):
            alive.peak = alive.now
            for context, x, result in zip(contexts, xs, results):
                context.begin([x.view(-1)], [result], StepInfo(step))
            drive([strategy.collective.rounds(c) for c in contexts], Trace(WORLD))
            for context in contexts:
                context.end(skipped=False)
                forget_arrived(context)
            gc.collect()
    made = [c for c in contexts if "buffer" in vars(c.codec)]
    untouched = sum(c.codec.buffer.nbytes - int(c.codec.length[0]) for c in made)
    return (alive.peak - untouched) / WORLD / (2 * union * BYTES)


def forget_arrived(context: BucketContext) -> None:
    """Drops what a context keeps of the messages that arrived, to know them in the next step."""
    context.codec.known = kernels.Known()
    inbox = vars(context).get("_inbox")
    if inbox is not None:
        vars(context)["_inbox"] = Inbox([context.codec.layout] * WORLD, inbox.ragged)


if __name__ == "__main__":
    sys.exit(main())
