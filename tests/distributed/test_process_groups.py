"""Groups that attach makes: a rank that is done with one before the others harms no other rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

from gradwire.network import leaf_spine, route
from gradwire.network.exports import pins_of
from gradwire.runtime.planes import ADDRESSES, join_planes
from gradwire.runtime.process_groups import differing, make_group
from gradwire.runtime.torch_dist import Performer


class Slow(dist.Store):
    """A store that answers rank 1 slowly, so that it is the last to be connected to all."""

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


@contextmanager
def slow() -> Iterator[None]:
    """Groups that are made of the default group use a slow store."""
    stores = dist.distributed_c10d._world.pg_map
    backend, store = stores[dist.group.WORLD]
    stores[dist.group.WORLD] = (backend, Slow(store))
    try:
        yield
    finally:
        stores[dist.group.WORLD] = (backend, store)


def leave_at_once() -> None:
    with slow():
        Performer(make_group(None, 20)).close()


def leave_planes_at_once() -> None:
    os.environ[ADDRESSES] = "127.0.0.2"
    pins = pins_of(route([(0, 1, 1000), (1, 2, 1000), (2, 0, 1000)], leaf_spine(3, 1, 1)))
    with slow():
        group = dist.group.WORLD
        assert group is not None
        join_planes(pins, range(3), group, 20.0).groups.clear()
    del os.environ[ADDRESSES]
    dist.barrier()  # in order: no rank leaves with another's error


@pytest.mark.parametrize("how", [leave_at_once, leave_planes_at_once])
def test_a_group_is_closed_while_others_connect(three: Ranks, how: Callable[[], None]) -> None:
    """attach does this when it fails on every rank: the first rank to know closes its groups."""
    three.run(how)


def differ(text: str, of_one: str) -> dict[int, str]:
    group, device = dist.group.WORLD, torch.device("cpu")
    assert group is not None
    return differing(of_one if dist.get_rank() == 1 else text, group, device)


@pytest.mark.parametrize("text", ["alike", "a" + "ü" * 700])
def test_what_ranks_say_otherwise(three: Ranks, text: str) -> None:
    """Texts may be cut, in the middle of a letter of two bytes or not, and are compared whole."""
    assert three.run(differ, text, text) == [{}] * 3
    cut = text.encode()[:967].decode(errors="ignore")
    first, second, third = three.run(differ, text, "other")
    assert first == third == {1: "other"}
    assert second == {0: cut, 2: cut}
    first, second, third = three.run(differ, text, f"{text}!")
    assert list(first) == list(third) == [1]
    assert list(second) == [0, 2]
