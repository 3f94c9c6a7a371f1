"""The stamp of what the sanitizers have looked at: of their files, and of instruction sets."""

from __future__ import annotations

from pathlib import Path

import pytest

import stamp


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a source of the core, and a file that is none of the sanitizers' business."""
    for name in ("csrc/network/packets.cpp", "tests/fuzz/main.py", "docs/why.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as it was")
    return tmp_path


def test_every_pattern_names_a_file() -> None:
    assert all(any(stamp.ROOT.glob(pattern)) for pattern in stamp.LOOKED_AT)


def test_any_change_of_what_is_looked_at_is_another_stamp(root: Path) -> None:
    found = {stamp.digest(root)}
    (root / "csrc/network/packets.cpp").write_text("as it is")
    found.add(stamp.digest(root))
    (root / "csrc/network/packets.cpp").rename(root / "csrc/packets.cpp")
    found.add(stamp.digest(root))
    (root / "csrc/new.hpp").touch()
    found.add(stamp.digest(root))
    (root / "tests/fuzz/main.py").unlink()
    found.add(stamp.digest(root))
    assert len(found) == 5


def test_what_is_not_looked_at_changes_nothing(root: Path) -> None:
    before = stamp.digest(root)
    (root / "docs/why.md").write_text("as it is")
    assert stamp.digest(root) == before


def test_a_processor_with_more_instructions_has_kernels_that_nothing_looked_at(root: Path) -> None:
    seen = f"{stamp.digest(root)} avx2\n"
    assert stamp.is_seen(root, {"avx2"}, seen)
    assert stamp.is_seen(root, set(), seen)
    assert not stamp.is_seen(root, {"avx2", "avx512f"}, seen)
    assert not stamp.is_seen(root, None, seen), "a processor of which nothing is known"
    assert not stamp.is_seen(root, {"avx2"}, "")
    assert not stamp.is_seen(root, {"avx2"}, f"{'0' * 64} avx2\n")


def test_instruction_sets_are_as_linux_names_them(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nflags\t\t: fpu avx avx2 sse4_2\nbugs\t\t: avx512f\n")
    assert stamp.instruction_sets(told) == {"avx2"}
    told.write_text("Features\t: fp asimd\n")
    assert stamp.instruction_sets(told) is None
    assert stamp.instruction_sets(tmp_path / "none") is None
