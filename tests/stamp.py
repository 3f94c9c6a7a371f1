"""Whether the sanitizers would see anything that they have not seen before.

    python tests/stamp.py             exit 0 if not: what they look at is as it was, and the
                                      processor has no instructions that it did not have there
    python tests/stamp.py --write     after `make test-sanitized` has found nothing

They look at the C++ core, at what Python checks before it calls the core, and call both by a
fuzzer. The stamp is a hash of these files and the processor's instruction sets, in
`tests/sanitized.txt`. Without it a sixth of a run of CI would be for a core that has not changed.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAMP = ROOT / "tests/sanitized.txt"
LOOKED_AT = (
    "CMakeLists.txt", "csrc/**/*", "src/gradwire/kernels/*.py", "src/gradwire/kernels/cpu/*.py",
    "src/gradwire/network/native.py", "tests/fuzz/**/*.py",
)  # fmt: skip
SETS = ("avx2", "avx512f")
"""The instruction sets for which the core has kernels of their own, as Linux names them."""


def looked_at(root: Path) -> Iterator[Path]:
    """Yields the files at which the sanitizers look, in an order that is the same everywhere."""
    found = {path for pattern in LOOKED_AT for path in root.glob(pattern) if path.is_file()}
    yield from sorted(found, key=lambda path: path.relative_to(root).as_posix())


def digest(root: Path) -> str:
    """Returns a hash of these files: of their names and contents."""
    total = hashlib.sha256()
    for path in looked_at(root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str] | None:
    """Returns those of `SETS` that the processor has; None if it cannot be known."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return set(SETS) & set(flags[1].split()) if flags else None


def is_seen(root: Path, own: set[str] | None, stamp: str) -> bool:
    """Whether the stamp is of these files, on a processor with at least these instructions."""
    found, *sets = stamp.split() or [""]
    return own is not None and found == digest(root) and own <= set(sets)


def main(arguments: list[str]) -> int:
    own = instruction_sets()
    if arguments == ["--write"]:
        STAMP.write_text(" ".join([digest(ROOT), *sorted(own or ())]) + "\n")
        return 0
    stamp = STAMP.read_text() if STAMP.exists() else ""
    return 0 if is_seen(ROOT, own, stamp) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
