"""Refuses a release whose tag is not the version, or of which the changelog says nothing.

python release/tag.py v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def complaints(tag: str, root: Path = ROOT) -> list[str]:
    """Returns what keeps this tag from being released."""
    source = (root / "src/gradwire/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    version = found[1] if found else ""
    out = []
    if tag != f"v{version}":
        out.append(
            f"a tag is v and the version of src/gradwire/__init__.py, v{version}, not {tag}; "
            "change the version, commit it, and tag that commit"
        )
    if f"\n## [{version}]" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        out.append(
            f"CHANGELOG.md has no section [{version}]; give that name to what is [Unreleased]"
        )
    return out


if __name__ == "__main__":
    sys.exit("\n".join(complaints(sys.argv[1])))
