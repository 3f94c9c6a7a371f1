"""The interpreter computes with numpy, of inf and NaN, too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _numpy_says_nothing() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
