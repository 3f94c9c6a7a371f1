"""Runs a page as its reader would: every block in order, in one folder, on two ranks.

Commands that only compute run on rank 0; those that measure, build networks or train are left to
`doc_check`. Python runs with the names that a reader has by then: a model, its loss, a rank; a
comment behind print(...) is what it prints.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from doc_pages import Block, blocks, commands
from torch import Tensor, nn

import gradwire
from gradwire.cli.main import main
from gradwire.soundness import SoundnessWarning

TOGETHER = {
    "README.md", "docs/adam-and-muon.md", "docs/auto.md", "docs/checkpoints.md",
    "docs/first-run.md", "docs/fsdp.md", "docs/gpu.md", "docs/index.md", "docs/local-steps.md",
    "docs/network.md", "docs/recording.md", "docs/training.md",
}  # fmt: skip
"""Pages whose Python runs on all ranks. The Python of others needs no process group."""

COMPUTES = {"available", "explain", "network", "plan", "report"}
"""Commands that are run."""

SMALLER = {
    "leaf_spine(16, 16, 16)": "leaf_spine(4, 4, 4)",
    "fat_tree(4, 4, 8, 4, 4)": "fat_tree(2, 2, 8, 4, 4)",
    "rail_optimized(8, 16, 8, 16)": "rail_optimized(2, 8, 8, 16)",
    "examples/parallel.toml": "small.toml",
    "0.1": "0.002",
}
"""Words that make a command compute for many seconds, and what replaces them here."""

PLANES = "127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5"
"""Addresses of the loopback, for four paths."""


class Net(nn.Module):
    """The model that `model` names on every page."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.table(rows)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        y: Tensor = self.head(x)
        return y


class Loss:
    """A loss whose backward() begins with a forward pass of whatever `model` is by then."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def backward(self) -> None:
        self._names["model"](torch.arange(3)).square().mean().backward()


def run(page: str, folder: str, port: int) -> int:
    """Runs the blocks of a page that can run here. Returns how many did. port: for a store of this
    run alone."""
    os.chdir(folder)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update(GRADWIRE_HOST=os.environ["RANK"], GRADWIRE_PLANES=PLANES)
    warnings.simplefilter("error", SoundnessWarning)  # strategies on pages must be sound
    reader = Reader(page in TOGETHER)
    for block in blocks(page):
        reader.read(block)
    reader.leave()
    return reader.ran


class Reader:
    """Runs blocks on one rank, with what it has by then."""

    def __init__(self, together: bool) -> None:
        self._together, self._rank, self.ran = together, int(os.environ["RANK"]), 0
        self._names: dict[str, Any] = {
            "torch": torch, "gradwire": gradwire, "rank": self._rank, "loader": range(10),
            "replicas": 2, "ranks_per_replica": 1, "device": torch.device("cpu"),
            "folder": "sharded", "batches": 10 * [torch.arange(3)],
        }  # fmt: skip
        self._names["loss"] = Loss(self._names)
        self._names["model"] = Net()
        if dist.is_initialized():
            dist.destroy_process_group()  # the pool's, whose timeout is short

    def read(self, block: Block) -> None:
        try:
            if block.language == "console" and self._rank == 0:
                for command in commands(block.text):
                    self._command(command)
            elif block.language == "python" and (self._together or self._rank == 0):
                self._python(block)
        except BaseException as error:
            error.add_note(f"in the block at {block.place}")
            raise

    def _command(self, command: list[str]) -> None:
        program, *words = command
        if program != "gradwire" or not {words[0], " ".join(words[:2])} & COMPUTES:
            return
        asked = [SMALLER.get(word, word) for word in words]
        asked = [name for word in asked for name in _files(word)]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(asked) == 0, command
        assert out.getvalue(), command
        self.ran += 1

    def _python(self, block: Block) -> None:
        if self._together:
            self._prepare(block.text)
        shown = re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, block.place, "exec"), self._names)
        said = out.getvalue().splitlines()
        assert [line for line in said if line in shown] == shown, (said, shown)
        if self._together:
            self._step()
        self.ran += 1

    def _prepare(self, text: str) -> None:
        """Makes a process group and a handle, unless this block makes its own."""
        attaches = "attach(" in text or "LocalSteps(" in text
        if "init_process_group(" in text:
            self.leave()
            return
        if not dist.is_initialized():
            self.leave()
            self._make_group()
        if attaches or "handle" not in self._names:
            self.leave()
            self._names["model"] = Net()
        if not attaches and "handle" not in self._names:
            model = self._names["model"]
            self._names["optimizer"] = gradwire.optim.SGD(model.parameters(), lr=0.1)
            self._names["handle"] = gradwire.attach(model, "topk(0.01)+ef | allgather")
        dist.barrier()

    def _make_group(self) -> None:
        """Makes a process group with a long timeout, as rank 0 computes between two blocks."""
        store = dist.FileStore(os.path.abspath("group"), 2)
        dist.init_process_group(
            "gloo", store=store, rank=self._rank, world_size=2, timeout=timedelta(seconds=240)
        )

    def _step(self) -> None:
        """Takes a training step with what the block has left, which shows refused settings."""
        if not dist.is_initialized() or "local" in self._names:
            return
        self._names["model"].zero_grad()
        self._names["loss"].backward()
        if "optimizer" in self._names and "scaler" not in self._names:
            self._names["optimizer"].step()

    def leave(self) -> None:
        """Detaches what is attached, and forgets what was for that model."""
        for name in ("handle", "local"):
            if name in self._names:
                self._names.pop(name).detach()
        for name in ("optimizer", "scaler"):
            self._names.pop(name, None)


def _files(word: str) -> list[str]:
    return sorted(glob.glob(word)) if "*" in word else [word]
