"""Trainers, one thin file each: one line in the trainer, and residuals in its checkpoints.

A file imports its trainer and nothing of gradwire imports the file. Trainers save custom state on
rank 0 alone, but what waits in residuals differs between ranks: here each rank writes its own.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from fsspec.core import url_to_fs

import gradwire


def save(handle: gradwire.Handle, folder: str | Path, name: str = "gradwire") -> None:
    """Write what this rank remembers into a checkpoint's folder, as NAME-RANK-of-WORLD.pt.

    For every rank to call, between two steps; not collective; blocks until it is written.

    Args:
        handle: of the attached model.
        folder: a path or an fsspec URL; made where it is missing. One that all ranks will read.
        name: one for each attached model.
    """
    files, root = url_to_fs(str(folder))
    files.makedirs(root, exist_ok=True)
    with files.open(f"{root}/{name}-{_rank()}.pt", "wb") as file:
        torch.save(handle.state_dict(), file)


def load(handle: gradwire.Handle, folder: str | Path, name: str = "gradwire") -> None:
    """Resume from what `save` wrote, also with another number of ranks. For every rank to call.

    A folder without any such file is of a run without gradwire: a warning, and residuals begin
    empty.

    Raises:
        PlanError: what is there belongs to another model or plan, or is not complete.
    """
    files, root = url_to_fs(str(folder))
    mine = f"{root}/{name}-{_rank()}.pt"
    found = [mine] if files.exists(mine) else sorted(files.glob(f"{root}/{name}-*-of-*.pt"))
    if not found:
        warnings.warn(
            f"a checkpoint made with gradwire has a file per rank; rank {dist.get_rank()} found "
            f"none in {folder}. Residuals begin empty.",
            UserWarning,
            stacklevel=2,
        )
        return
    states = []
    for path in found:
        with files.open(path, "rb") as file:
            states.append(torch.load(file, map_location="cpu", weights_only=True))
    handle.load_state_dict(states[0] if found == [mine] else states)


def _rank() -> str:
    return f"{dist.get_rank()}-of-{dist.get_world_size()}"
