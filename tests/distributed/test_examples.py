"""The examples run as a reader would run them, for a few steps."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
import torch.distributed as dist
from ranks import Ranks

from gradwire.soundness import SoundnessWarning

EXAMPLES = Path(__file__).parents[2] / "examples"
LAST_LINE = {
    "train.py": "bytes sent a step",
    "transformer.py": "bytes sent a step",
    "compare_strategies.py": "dgc(0.01) | allgather",
    "embeddings.py": "ms a step",
    "accelerate_loop.py": "exchanges of",
    "hf_trainer.py": "exchanges of",
    "lightning_module.py": "exchanges of",
    "fabric_loop.py": "exchanges of",
    "ray_train.py": "exchanges of",
    "torchtitan_loop.py": "exchanges of",
}
NEEDS = {
    "accelerate_loop.py": "accelerate",
    "hf_trainer.py": "transformers",
    "lightning_module.py": "lightning",
    "fabric_loop.py": "lightning",
    "ray_train.py": "ray",
}


OF_THEIR_OWN = {"restart.py", "fsdp2.py", "survivors.py"}
"""Tested elsewhere, or below."""


def test_every_example_is_run() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")}
    assert found == {*LAST_LINE, *OF_THEIR_OWN}


def in_a_rank(path: str, store: str) -> str:
    """What an example prints whose process group gets its addresses from a file."""
    dist.destroy_process_group()
    warnings.simplefilter("error", SoundnessWarning)  # examples are learnt with
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join, said = dist.init_process_group, io.StringIO()
    by_file = partial(join, init_method=f"file://{store}", rank=rank, world_size=world)
    with (
        patch.object(dist, "init_process_group", by_file), redirect_stdout(said),
        patch.object(sys, "argv", [path, "--steps", "3"]),
    ):  # fmt: skip
        runpy.run_path(path, run_name="__main__")
    return said.getvalue()


def test_the_first_example_runs_in_ranks(tmp_path: Path) -> None:
    with Ranks(2, tmp_path, timeout_seconds=60.0) as ranks:
        said, _ = ranks.run(in_a_rank, str(EXAMPLES / "train.py"), str(tmp_path / "example"))
    assert LAST_LINE["train.py"] in said.splitlines()[-1]


@pytest.mark.full
@pytest.mark.parametrize("name", LAST_LINE)
def test_an_example_runs(name: str) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if name == "ray_train.py":
        launcher = []  # Ray starts its workers itself
    ran = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / name), "--steps", "3"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert LAST_LINE[name] in ran.stdout.splitlines()[-1]
    assert SoundnessWarning.__name__ not in ran.stderr, "examples are learnt with"


def restart(ranks: int, folder: Path, *options: str) -> str:
    """The last line that the example prints. The environment variable is for torch
    (docs/footguns.md)."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*launcher, "--nproc-per-node", f"{ranks}", "--max-restarts", "1",
         str(EXAMPLES / "restart.py"), "--folder", str(folder), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


@pytest.mark.full
def test_a_killed_job_ends_with_the_weights_it_would_have_had(tmp_path: Path) -> None:
    """The weights are the same to the last bit. Another number of ranks continues from the
    checkpoint."""
    wanted = restart(2, tmp_path / "whole")
    assert "after 60 steps" in wanted
    assert restart(2, tmp_path / "killed", "--kill-at", "25") == wanted
    more = restart(3, tmp_path / "killed", "--steps", "70")
    assert "after 70 steps" in more
