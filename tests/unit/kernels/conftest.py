"""Every kernel test runs on one thread, and most on each instruction set of this machine."""

from collections.abc import Iterator

import pytest
import torch

from gradwire.kernels import use
from gradwire.kernels.native import available_sets


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=available_sets(), scope="module")
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test with the kernels on this instruction set."""
    with use(request.param):
        yield request.param
