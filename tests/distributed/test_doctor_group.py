"""gradwire doctor on a process group: a verdict can be made of what it measures."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from ranks import Ranks

from gradwire.cli import doctor
from gradwire.errors import UsageError


def measured() -> dict[str, object]:
    return doctor.measured(0.01, torch.device("cpu"))


def without_memory() -> str:
    """What rank 1, which has no memory for the test, and the others say."""
    ones = torch.ones

    def few(count: int, **options: object) -> torch.Tensor:
        if dist.get_rank() == 1 and count > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return ones(count, **options)

    torch.ones = few
    try:
        measured()
    except UsageError as error:
        return str(error)
    finally:
        torch.ones = ones
    return ""


def test_every_rank_measures_the_group(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        for found in ranks.run(measured):
            assert (found["backend"], found["ranks"], found["hosts"]) == ("gloo", 2, 1)
            facts: doctor.Facts = {"torch": {}, "network": found}
            assert doctor.verdict(facts)["fp32_seconds"] > 0


def test_all_ranks_say_which_has_no_memory_for_it(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        for said in ranks.run(without_memory):
            assert "rank 1 has none for 0.01 MB: DefaultCPUAllocator" in said
            assert said.endswith("Pass less.")
