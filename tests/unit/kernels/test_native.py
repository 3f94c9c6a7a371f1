"""Which version of the kernels runs, and the message when there is none."""

import os
import subprocess
import sys

import pytest
import torch

from gradwire.errors import KernelError
from gradwire.extension import TWIN, VARIABLE
from gradwire.kernels import instruction_set, new_status, topk, use
from gradwire.kernels.native import available_sets
from suites import first

ABSENT = "import sys; sys.modules['gradwire._native'] = None\n"
CALL = """
import torch
from gradwire import kernels
i, v = torch.empty(2, dtype=torch.int32), torch.empty(2)
for _ in range(3):
    kernels.topk(torch.tensor([1.0, -5.0, 3.0]), 2, i, v, kernels.new_status())
print(kernels.instruction_set(), i.tolist(), v.tolist())
"""


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", available_sets())
def test_use_is_undone(name: str) -> None:
    before = instruction_set()
    with use(name):
        assert instruction_set() == name
    assert instruction_set() == before


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        KernelError, match="must be one of plain, avx2, avx512, neon, twin, not 'sse'"
    ):
        use("sse").__enter__()


@pytest.mark.parametrize("name", first(available_sets()))
def test_the_variable_chooses(name: str) -> None:
    done = python(CALL, **{VARIABLE: name})
    assert done.stdout.split() == [name, "[1,", "2]", "[-5.0,", "3.0]"], done.stderr


def test_the_variable_names_a_set() -> None:
    done = python(CALL, **{VARIABLE: "fast"})
    assert f"{VARIABLE} must be one of plain, avx2, avx512, neon, twin, not 'fast'" in done.stderr


def test_without_the_extension_the_twin_runs_and_says_so_once() -> None:
    """Nothing is said before the first call."""
    done = python(ABSENT + "import gradwire.kernels\nprint('imported', file=sys.stderr)" + CALL)
    assert done.stdout.split()[0] == TWIN
    assert done.stderr.startswith("imported\n")
    assert done.stderr.count("RuntimeWarning") == 1
    assert "reinstall" in done.stderr
    accepted = python(ABSENT + CALL, **{VARIABLE: TWIN})
    assert "RuntimeWarning" not in accepted.stderr


def test_other_devices_take_the_twin() -> None:
    x = torch.empty(4, device="meta")
    with pytest.raises(KernelError, match="on meta without"):
        topk(x, 2, torch.empty(2, dtype=torch.int32), torch.empty(2), new_status())
