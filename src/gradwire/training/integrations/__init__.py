"""Trainers, one thin file each: one line in the trainer, and residuals in its checkpoints.

A file imports its trainer and nothing of gradwire imports the file. Trainers save custom state on
rank 0 alone, but what waits in residuals differs between ranks: here each rank writes its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsspec.core import url_to_fs

import gradwire
from gradwire.errors import PlanError
from gradwire.training.rows import Rows, numbers


@contextmanager
def needing(trainer: str, module: str, install: str) -> Iterator[None]:
    """Around a module's import of its trainer: where that is missing, the ImportError says what
    to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{module} needs {trainer}: {error}. Say: pip install {install}"
        ) from error


class Numbers:
    """A handle's numbers, for a trainer's logger: "gradwire/step_seconds" and so on, means over
    the steps since it was asked last; empty where there was none."""

    def __init__(self, handle: gradwire.Handle) -> None:
        self._handle = handle
        self._rows = Rows(handle._session, handle._view.waiting)

    def forget_now(self) -> None:
        """What was done since the last exchange is no step's, as between two trainings."""
        self._rows.forget_now()

    def __call__(self) -> dict[str, float]:
        if not self._handle.attached:
            return {}
        row = self._rows.next(self._handle._session.step)
        return {} if row is None else numbers(row)


def save(handle: gradwire.Handle, folder: str | Path, name: str = "gradwire") -> None:
    """Write what this rank remembers into a checkpoint's folder, as NAME-RANK-of-WORLD.pt.

    For every rank to call, between two steps; not collective; blocks until it is written. Files
    that another number of ranks has left there are removed: they are of an earlier step.

    Args:
        handle: of the attached model.
        folder: a path or an fsspec URL; made where it is missing. One that all ranks will read.
        name: one for each attached model.
    """
    files, root = url_to_fs(str(folder))
    files.makedirs(root, exist_ok=True)
    whole = f"{root}/{name}-{_rank()}.pt"
    with files.open(f"{whole}.part", "wb") as file:  # who dies here has the one before
        torch.save(handle.state_dict(), file)
    files.mv(f"{whole}.part", whole)
    if dist.get_rank() == 0:
        for world, left in _by_world(files, root, name).items():
            if world != dist.get_world_size():
                files.rm(left)


def load(
    handle: gradwire.Handle, folder: str | Path, name: str = "gradwire", *, strict: bool = True
) -> None:
    """Resume from what `save` wrote, also with another number of ranks. For every rank to call.

    A folder without any such file is of a run without gradwire: a warning, and residuals begin
    empty. strict: as of `Handle.load_state_dict`.

    Raises:
        PlanError: what is there belongs to another model or plan, is not complete, or is of two
            numbers of ranks, where a job died while it saved.
    """
    files, root = url_to_fs(str(folder))
    by_world = _by_world(files, root, name)
    if len(by_world) > 1:
        numbers = " and of ".join(map(str, sorted(by_world)))
        raise PlanError(
            "a checkpoint's folder has the files of one number of ranks; found of "
            f"{numbers} in {folder}. Remove the older ones, or take the checkpoint before."
        )
    saved = [path for paths in by_world.values() for path in paths]
    mine = [path for path in saved if path.endswith(f"-{_rank()}.pt")]
    found = mine or saved
    if not found:
        warnings.warn(
            f"a checkpoint made with gradwire has a file per rank; rank {dist.get_rank()} found "
            f"none in {folder}. Residuals begin empty.",
            stacklevel=2,
        )
        handle.reset()
        return
    states = []
    for path in found:
        try:
            with files.open(path, "rb") as file:
                states.append(torch.load(file, map_location="cpu", weights_only=True))
        except Exception as error:  # whatever torch and a storage raise
            raise PlanError(
                f"a rank's file is what gradwire saved, whole; {path} cannot be read: {error!r}. "
                "Copy it again, or take the checkpoint before."
            ) from error
    handle.load_state_dict(states, strict=strict)


def _by_world(files: Any, root: str, name: str) -> dict[int, list[str]]:
    """What is there, by the number of ranks that wrote it."""
    found: dict[int, list[str]] = {}
    files.invalidate_cache(root)
    for path in sorted(files.ls(root, detail=False)) if files.isdir(root) else ():
        match = re.fullmatch(rf"{re.escape(name)}-\d+-of-(\d+)\.pt", path.rpartition("/")[2])
        if match:
            found.setdefault(int(match[1]), []).append(path)
    return found


def _rank() -> str:
    return f"{dist.get_rank()}-of-{dist.get_world_size()}"
