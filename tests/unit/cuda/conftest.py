"""Settings for Triton's interpreter, which computes with numpy, with inf and NaN too."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

from interpreter import quicken

if find_spec("triton"):
    quicken()


@pytest.fixture(autouse=True)
def _numpy_says_nothing() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
