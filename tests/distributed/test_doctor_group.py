"""gradwire doctor on a process group: a verdict can be made of what it measures."""

from __future__ import annotations

from pathlib import Path

import torch
from ranks import Ranks

from gradwire.cli import doctor


def measured() -> dict[str, object]:
    return doctor.measured(0.01, torch.device("cpu"))


def test_every_rank_measures_the_group(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        for found in ranks.run(measured):
            assert (found["backend"], found["ranks"], found["hosts"]) == ("gloo", 2, 1)
            facts: doctor.Facts = {"torch": {}, "network": found}
            assert doctor.verdict(facts)["fp32_seconds"] > 0
