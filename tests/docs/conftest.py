"""The same pools of ranks as in tests/distributed, and what makes the pages a site."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "pictures"))

from collections.abc import Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks."""
    with Ranks(2, tmp_path_factory.mktemp("two")) as ranks:
        yield ranks
