"""The two kinds of arrays that the network is made of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
"""Ints of hosts, flows, links and paths, bytes, and picoseconds."""
Reals: TypeAlias = NDArray[np.float64]
"""Seconds, rates, and shares."""
