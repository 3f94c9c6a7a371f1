"""Writes the files of packages with their hashes: requirements.txt and release/tools.txt.

    python release/lock.py                  with pip-tools installed

requirements.txt is what `make setup` installs, with all that it needs: the versions of
constraints.txt, and for each the hashes of its files in the package index. torch is left out, and
NVIDIA's libraries with it: which build of torch is right depends on the machine, and each has a
hash of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = re.compile(r"(torch|nvidia-[\w-]+|cuda-[\w-]+)==")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.in"
        wanted.write_text("\n".join(wanted_by("dev")) + "\n", encoding="utf-8")
        lock(wanted, ROOT / "requirements.txt", "--constraint", str(ROOT / "constraints.txt"))
    lock(ROOT / "release/tools.in", ROOT / "release/tools.txt")
    return 0


def wanted_by(extra: str) -> Iterator[str]:
    """Yields what gradwire with that extra asks for, extras of its own expanded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield from project["dependencies"]
    for requirement in project["optional-dependencies"][extra]:
        own = re.fullmatch(r"gradwire\[([\w,]+)\]", requirement)
        for name in own[1].split(",") if own else ():
            yield from project["optional-dependencies"][name]
        if not own:
            yield requirement


def lock(wanted: Path, target: Path, *options: str) -> None:
    """Resolves, and writes every version with its hashes."""
    fixed = [
        "--generate-hashes",
        "--allow-unsafe",
        "--strip-extras",
        "--no-annotate",
        "--no-header",
    ]
    quiet = ["--quiet", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.txt"
        command = [sys.executable, "-m", "piptools", "compile", *fixed, *quiet, *options]
        subprocess.run([*command, "--output-file", str(found), str(wanted)], check=True)
        text = found.read_text(encoding="utf-8")
    entries = re.findall(r"^\S.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    kept = [entry for entry in entries if not LEFT_OUT.match(entry) and entry[0] not in "#-"]
    head = "# Written by `python release/lock.py`: every package with the hashes of its files.\n"
    target.write_text(head + "".join(f"{entry.rstrip()}\n" for entry in kept), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
