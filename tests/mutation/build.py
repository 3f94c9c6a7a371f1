"""Builds of the C++ core apart from the installed one: plain, traced, or with a mutant."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOMAIN = "-DNB_DOMAIN=mutation"
"""Keeps the build's types apart from the installed extension's: one process may load both."""


class Build:
    """A copy of the sources in a folder, and what ninja builds from it."""

    def __init__(self, folder: Path, flags: str = "", more: Path | None = None) -> None:
        self.sources, self._made = folder / "sources", folder / "made"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "csrc", self.sources / "csrc")
        cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
        cmake = cmake.replace("-O3", f"-O1 {flags}")  # less optimized, as many are built
        if more:
            shutil.copy(more, self.sources)
            cmake += f"\ntarget_sources(_native PRIVATE {more.name})\n"
        (self.sources / "CMakeLists.txt").write_text(cmake, encoding="utf-8")
        nanobind = subprocess.check_output([sys.executable, "-m", "nanobind", "--cmake_dir"])
        subprocess.run(
            ["cmake", "-S", self.sources, "-B", self._made, "-G", "Ninja",
             f"-DCMAKE_CXX_FLAGS={DOMAIN}", f"-DPython_EXECUTABLE={sys.executable}",
             f"-Dnanobind_DIR={nanobind.decode().strip()}"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def extension(self) -> Path | None:
        """Builds the extension from the sources as they are now; None if they do not compile."""
        command = ["ninja", "-C", str(self._made)]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            return None
        return next(self._made.glob("_native*.so"))
