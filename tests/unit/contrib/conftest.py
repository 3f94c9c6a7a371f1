"""The packages of contrib, which may not be installed, and helpers from gradwire's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
for folder in ("contrib/formats", "tests/unit", "tests/unit/network", "tests/docs"):
    if str(ROOT / folder) not in sys.path:
        sys.path.append(str(ROOT / folder))
