"""Where commands write."""

from __future__ import annotations

import os
from pathlib import Path

from gradwire.errors import UsageError


def check_output(what: str, path: Path) -> None:
    """UsageError unless a file can be written there: said before the work, not after it."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise UsageError(
            f"{what} is written to a file in a folder that is there; {path} is none. Make the "
            "folder, or say another -o."
        )
