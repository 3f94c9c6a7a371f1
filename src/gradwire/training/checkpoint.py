"""Reads the states of ranks from a checkpoint of torch.distributed.checkpoint.

    dcp.save({"model": …, "gradwire": handle.state_dict()}, checkpoint_id=folder)
    handle.load_checkpoint(folder)

Each rank's state has its rank in its keys, so dcp writes all of them, each rank its own beside its
part of the model. dcp.load fills existing tensors only, and a handle that has not taken a step has
none yet: here they are allocated as the checkpoint's metadata says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader

from gradwire.errors import PlanError
from gradwire.training.documents import MOST_RANKS

RANKS = "ranks"


def read(
    checkpoint: str | Path | StorageReader, key: str, ranks: Callable[[int], list[str]]
) -> dict[str, Any]:
    """Returns the state saved under `key`, with the entries of some ranks. Not collective.

    ranks: returns the names of the wanted ranks, given how many saved; missing ones are left out.
    Raises PlanError if this is no checkpoint, or it holds no such state.
    """
    reader = FileSystemReader(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    try:
        metadata = reader.read_metadata()
    except Exception as error:  # whatever a storage raises
        raise PlanError(
            "a checkpoint must be a folder that torch.distributed.checkpoint.save wrote, and "
            f"every rank can read; '{checkpoint}' is not: {error!r}. Pass the folder that was "
            "its checkpoint_id."
        ) from error
    known = (metadata.planner_data or {}).items()
    paths = {name: path for name, path in known if path[0] == key and len(path) > 1}
    if not paths:
        raise PlanError(
            f"a checkpoint must hold gradwire's state; '{checkpoint}' has nothing under '{key}'. "
            f"Save {{'{key}': handle.state_dict()}} beside the model's state."
        )
    head = {name: path for name, path in paths.items() if path[1] != RANKS}
    state = _filled(head, metadata.state_dict_metadata, reader, key)
    world = state.get("world")
    if not isinstance(world, int) or not 0 < world <= MOST_RANKS:
        world = 0  # it is refused later
    wanted = set(ranks(world))
    own = {
        name: path
        for name, path in paths.items()
        if path[1] == RANKS and not wanted.isdisjoint(path[2:3])
    }
    found = _filled(own, metadata.state_dict_metadata, reader, key)
    return {"plan": {}, "aim": {}, "warmup": [], RANKS: {}, **state, **found}


def _filled(
    paths: dict[str, tuple[Any, ...]], kinds: dict[str, Any], reader: StorageReader, key: str
) -> dict[str, Any]:
    """Reads entries from the storage into a dictionary that is nested by their paths."""
    room: dict[str, Any] = {}
    for name, path in paths.items():
        at = room
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = _room(kinds[name])
    if room:
        with warnings.catch_warnings():  # each rank is meant to read by itself
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            try:
                load(room, storage_reader=reader, no_dist=True)
            except CheckpointException as error:
                causes = "; ".join(dict.fromkeys(repr(e) for e, _ in error.failures.values()))
                raise PlanError(
                    "a checkpoint needs the files of all ranks that saved it; some cannot be "
                    f"read: {causes}. Copy all of its files to a path that every rank can read."
                ) from error
    found: dict[str, Any] = room.get(key, {})
    return found


def _room(kind: Any) -> Any:
    if isinstance(kind, TensorStorageMetadata):
        return torch.empty(kind.size, dtype=kind.properties.dtype)
    return None
