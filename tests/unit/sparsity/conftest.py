"""Where the study lies, which is no part of gradwire: a package `sparsity`, and scripts."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "benchmarks" / "sparse"

# At the end: what other tests import by the names of the scripts is theirs.
sys.path.append(str(FOLDER))
