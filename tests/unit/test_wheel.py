"""A wheel builds, stays small, and works without this checkout.

Slow: it compiles the kernels. The build's own packages come from pip, unless they are installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
import torch

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
MOST_BYTES = 3_000_000  # 1.8 MB as of now
LOCKSTEP = """
import torch, gradwire
from gradwire import kernels
gradients = [torch.full((1000,), float(rank)) for rank in range(4)]
averages, trace = gradwire.lockstep("topk(0.01)+ef | allgather", gradients)
print(gradwire.__file__)
print(kernels.instruction_set())
print(float(averages[0].sum()), trace.bytes_sent)
"""


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--no-deps"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tools = all(map(importlib.util.find_spec, ("scikit_build_core", "nanobind")))
    pip("wheel", str(ROOT), "--wheel-dir", str(folder), *["--no-build-isolation"] * tools)
    (found,) = folder.glob("gradwire-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", str(wheel), "--target", str(folder))
    return folder


def run(installed: Path, *words: str) -> list[str]:
    """Lines that Python prints, with only the wheel and torch on its path; -S: no links to src."""
    others = {str(Path(package.__file__).parents[1]) for package in (torch, numpy)}
    paths = os.pathsep.join([str(installed), *others])
    done = subprocess.run(
        [sys.executable, "-S", *words], cwd=installed, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_wheel_is_small_and_has_one_extension(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.endswith(".so")]) == 1
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gradwire"}


def test_what_is_installed_works_outside_the_checkout(installed: Path) -> None:
    file, kernels, sums = run(installed, "-c", LOCKSTEP)
    assert file.startswith(str(installed))
    assert kernels != "twin"
    assert sums == "15.0 [264.0, 264.0, 264.0, 264.0]"
    assert "compressors" in run(installed, "-m", "gradwire", "available")
