"""Integrations of trainers, one thin file each: one line in the trainer, and residuals in its
checkpoints.

Each file imports its trainer, and no other module of gradwire imports the file. Trainers save
custom state on rank 0 alone, but residuals differ between ranks: here each rank writes its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    """A context for a module's import of its trainer: if that is missing, the ImportError says
    what to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{module} needs {trainer}: {error}. Run: pip install {install}"
        ) from error


class Numbers:
    """A handle's numbers for a trainer's logger, "gradwire/step_seconds" and so on. A call returns
    means over the steps since the last call; nothing if there was no step."""

    def __init__(self, handle: gradwire.Handle) -> None:
        self._handle = handle
        self._rows = Rows(handle._session, handle._view.waiting)

    def forget_now(self) -> None:
        """Exclude the time since the last exchange from all steps, as between two trainings."""
        self._rows.forget_now()

    def __call__(self) -> dict[str, float]:
        if not self._handle.attached:
            return {}
        row = self._rows.next(self._handle._session.step)
        return {} if row is None else numbers(row)


def hold_back(accelerator: Any, handle_of: Callable[[Any], gradwire.Handle | None]) -> None:
    """Let the `no_sync` of Accelerate hold exchanges back where it has not wrapped the model and
    would do nothing: on one process, where micro-batches must be one exchange, too.

    handle_of: returns the handle of a model, or None.
    """
    if accelerator.use_distributed:
        return
    no_sync = accelerator.no_sync

    @contextmanager
    def with_handle(model: Any) -> Iterator[None]:
        handle = handle_of(model)
        own = handle.no_sync() if handle is not None and handle.attached else nullcontext()
        with no_sync(model), own:
            yield

    accelerator.no_sync = with_handle


def save(handle: gradwire.Handle, folder: str | Path, name: str = "gradwire") -> None:
    """Write this rank's state into a checkpoint's folder, as NAME-RANK-of-WORLD.pt.

    Every rank must call it, between two steps; not collective; blocks until the file is written.
    Files that another number of ranks has left in the folder are removed, as they are of an
    earlier step.

    Args:
        handle: the handle of the attached model.
        folder: a path or an fsspec URL that all ranks will read; made if it is missing.
        name: a name for each attached model.
    """
    files, root = url_to_fs(str(folder))
    files.makedirs(root, exist_ok=True)
    whole = f"{root}/{name}-{_rank()}.pt"
    with files.open(f"{whole}.part", "wb") as file:  # a crash here leaves the former file intact
        torch.save(handle.state_dict(), file)
    files.mv(f"{whole}.part", whole)
    if dist.get_rank() == 0:
        for world, left in _by_world(files, root, name).items():
            if world != dist.get_world_size():
                files.rm(left)


def load(
    handle: gradwire.Handle, folder: str | Path, name: str = "gradwire", *, strict: bool = True
) -> None:
    """Resume from the files that `save` wrote, also with another number of ranks. Every rank must
    call it.

    A folder without any such file is of a run without gradwire: there is a warning, and residuals
    begin empty. strict: as in `Handle.load_state_dict`.

    Raises:
        PlanError: the files belong to another model or plan, are incomplete, or are of two numbers
            of ranks, as after a job that died while it saved.
    """
    files, root = url_to_fs(str(folder))
    by_world = _by_world(files, root, name)
    if len(by_world) > 1:
        numbers = " and of ".join(map(str, sorted(by_world)))
        raise PlanError(
            "a checkpoint's folder must hold the files of one number of ranks; found those of "
            f"{numbers} in {folder}. Remove the older ones, or load an earlier checkpoint."
        )
    saved = [path for paths in by_world.values() for path in paths]
    mine = [path for path in saved if path.endswith(f"-{_rank()}.pt")]
    found = mine or saved
    if not found:
        warnings.warn(
            f"a checkpoint made with gradwire has a file per rank; rank {dist.get_rank()} found "
            f"none in {folder}. Residuals begin empty; if gradwire saved here, copy its files "
            "first.",
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
                f"a rank's file must be the whole file that gradwire saved; {path} cannot be "
                f"read: {error!r}. Copy it again, or load an earlier checkpoint."
            ) from error
    handle.load_state_dict(states, strict=strict)


def _by_world(files: Any, root: str, name: str) -> dict[int, list[str]]:
    """Returns the paths of saved states in a folder, by the number of ranks that saved."""
    found: dict[int, list[str]] = {}
    files.invalidate_cache(root)
    for path in sorted(files.ls(root, detail=False)) if files.isdir(root) else ():
        match = re.fullmatch(rf"{re.escape(name)}-\d+-of-(\d+)\.pt", path.rpartition("/")[2])
        if match:
            found.setdefault(int(match[1]), []).append(path)
    return found


def _rank() -> str:
    return f"{dist.get_rank()}-of-{dist.get_world_size()}"
