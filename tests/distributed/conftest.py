"""Pools of ranks, one per size for all modules here; a pool with a dead rank starts anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Ranks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one of several pytest processes takes whole: tests of the lab, which look whether others
    left something on the machine, and those of a trainer, which takes seconds to import."""
    for item in items:
        stem = item.path.stem
        if stem.startswith(("test_lab", "test_demo")):
            item.add_marker(pytest.mark.xdist_group("lab"))
        elif stem.startswith("test_integrations"):
            item.add_marker(pytest.mark.xdist_group(stem))


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Three ranks."""
    with Ranks(3, tmp_path_factory.mktemp("three")) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks."""
    with Ranks(2, tmp_path_factory.mktemp("two")) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four ranks."""
    with Ranks(4, tmp_path_factory.mktemp("four")) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A world of one."""
    with Ranks(1, tmp_path_factory.mktemp("one")) as ranks:
        yield ranks
