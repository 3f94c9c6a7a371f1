"""Makes the study importable, which is no part of gradwire: a package `sparsity`, and scripts."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "benchmarks" / "sparse"

# At the end, so that other tests' modules win over scripts of the same name.
sys.path.append(str(FOLDER))
