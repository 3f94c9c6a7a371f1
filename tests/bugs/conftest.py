"""The same pools of ranks as in tests/distributed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "distributed"))

from collections.abc import Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Three ranks."""
    with Ranks(3, tmp_path_factory.mktemp("three")) as ranks:
        yield ranks
