"""Groups that attach makes: nobody is harmed by a rank that is done with one before the others."""

from __future__ import annotations

from time import sleep
from typing import Any

import torch.distributed as dist
from ranks import Ranks

from gradwire.runtime.process_groups import make_group
from gradwire.runtime.torch_dist import Performer


class Slow(dist.Store):
    """A store whose answers take a while on rank 1: it is the last to be connected to all."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def get(self, key: str) -> bytes:  # type: ignore[override]
        if dist.get_rank() == 1:
            sleep(0.2)
        return self._store.get(key)

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def multi_get(self, keys: list[str]) -> list[Any]:
        return [self.get(key) for key in keys]

    def wait(self, *arguments: Any) -> None:
        self._store.wait(*arguments)


def leave_at_once() -> None:
    stores = dist.distributed_c10d._world.pg_map
    backend, store = stores[dist.group.WORLD]
    stores[dist.group.WORLD] = (backend, Slow(store))
    try:
        Performer(make_group(None, 20)).close()
    finally:
        stores[dist.group.WORLD] = (backend, store)


def test_a_group_is_closed_while_others_connect(three: Ranks) -> None:
    """As attach does when it fails on every rank: the first to know closes its groups."""
    three.run(leave_at_once)
