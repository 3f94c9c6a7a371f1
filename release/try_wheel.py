"""Installs a wheel as a user would, on a machine without a compiler, and uses it.

    python release/try_wheel.py dist/*cp311*x86_64.whl
    python release/try_wheel.py dist/*cp311*x86_64.whl --torch "torch==2.13.0"

First without torch: that the package can be imported, and how long that takes. Then beside a torch
that is there already: installing must leave it alone, and the command line, the native core and a
job of four ranks must work. With the `--only-core` option the part with torch is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ALONE = """
import sys, time
began = time.perf_counter()
import gradwire
seconds = time.perf_counter() - began
assert "torch" not in sys.modules and "site-packages" in gradwire.__file__, gradwire.__file__
print(f"gradwire {gradwire.__version__}: imported in {seconds:.3f} s, without torch")
"""
SETS = "from gradwire import _native; print(*_native.instruction_sets())"
TORCH = "import torch; print(torch.__version__, torch.__file__)"
JOB = """
import torch, gradwire
from gradwire import kernels
gradients = [torch.full((1000,), float(rank)) for rank in range(4)]
averages, trace = gradwire.lockstep("topk(0.01)+ef | allgather", gradients)
assert float(averages[0].sum()) == 15.0, averages
print("four ranks in one process:", kernels.instruction_set())
"""


class Clean:
    """A new virtual environment; its PATH holds no compiler."""

    def __init__(self, folder: Path, python: str) -> None:
        self.bin = folder / "bin"
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        self.run("pip", "install", "--quiet", "--upgrade", "pip")

    def run(self, command: str, *words: str) -> str:
        """Runs a command of the environment; returns what it prints."""
        kept = ("SSL_CERT_FILE", "LANG", "PIP_")
        environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
        environment["PATH"] = str(self.bin)
        done = subprocess.run(
            [str(self.bin / command), *words], env=environment, cwd=self.bin,
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", default="torch", help="the torch that is there before")
    parser.add_argument("--only-core", action="store_true")
    given = parser.parse_args()
    wheel = str(given.wheel.resolve(strict=True))
    with tempfile.TemporaryDirectory() as folder:
        clean = Clean(Path(folder) / "venv", given.python)
        clean.run("pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", wheel)
        print(clean.run("python", "-c", ALONE))
        sets = clean.run("python", "-c", SETS).split()
        print("instruction sets:", *sets)
        about = Path("/proc/cpuinfo")
        if about.exists() and (unused := missing(sets, platform.machine(), about.read_text())):
            sys.exit(f"the wheel does not use what this processor has: {', '.join(unused)}")
        if not given.only_core:
            beside_torch(clean, wheel, given.torch)
    return 0


def missing(sets: list[str], machine: str, cpuinfo: str) -> set[str]:
    """Returns the instruction sets that this processor has, and the wheel does not find."""
    flags = {word for line in cpuinfo.splitlines() for word in line.split()}
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    own = {
        "avx2": machine == "x86_64" and {"f16c", "avx2"} <= flags,
        "avx512": machine == "x86_64" and {"f16c", *wide} <= flags,
        "neon": machine == "aarch64",
    }
    return {name for name, has in own.items() if has} - set(sets)


def beside_torch(clean: Clean, wheel: str, torch: str) -> None:
    """Installs the wheel with its dependencies where torch is already, and uses it."""
    clean.run("pip", "uninstall", "--quiet", "--yes", "gradwire")
    clean.run("pip", "install", "--quiet", torch)
    before = clean.run("python", "-c", TORCH)
    clean.run("pip", "install", "--quiet", "--only-binary=:all:", wheel)
    after = clean.run("python", "-c", TORCH)
    if before != after:
        sys.exit(f"installing gradwire replaced torch: {before} before, {after} after")
    print(f"torch {after.split()[0]}, as it was before")
    print(clean.run("gradwire", "--version"))
    found = json.loads(clean.run("gradwire", "doctor", "--json"))
    print("doctor:", json.dumps(found["kernels"]))
    if not found["kernels"]["native"]:
        sys.exit("gradwire doctor does not find the native core in the wheel")
    print(clean.run("python", "-c", JOB))


if __name__ == "__main__":
    sys.exit(main())
