"""Pools of ranks, one per size for each test module; a pool with a dead rank starts anew.

Idle ranks take processor time, too: every process group has a Gloo thread that wakes a hundred
times a second, and not all groups that tests make are gone after them.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Ranks


@pytest.fixture(autouse=True)
def _the_lab_s_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Locks out other pytest processes: they make and remove namespaces, and some tests look for
    any left behind."""
    stem = request.path.stem
    if not stem.startswith(("test_lab", "test_demo")):
        yield
        return
    with open(Path(tempfile.gettempdir(), "gradwire-tests-lab.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if stem == "test_lab_cleanup" else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Three ranks."""
    with Ranks(3, tmp_path_factory.mktemp("three")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks."""
    with Ranks(2, tmp_path_factory.mktemp("two")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four ranks."""
    with Ranks(4, tmp_path_factory.mktemp("four")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A world of one."""
    with Ranks(1, tmp_path_factory.mktemp("one")) as ranks:
        yield ranks
