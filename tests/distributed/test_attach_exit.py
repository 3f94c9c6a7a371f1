"""However a job ends, its processes end: no hang, no abort from a thread that is still waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suites import first

JOB = """
import os, sys, torch, torch.distributed as dist, gradwire
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1],
                        rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.Linear(9, 9)
handle = gradwire.attach(model, "topk(0.1)+ef | allgather", lanes=2, bucket_bytes=1)
for _ in range(3):
    model.zero_grad()
    model(torch.ones(1, 9)).sum().backward()
if sys.argv[2] == "destroy-first":
    dist.destroy_process_group()
    handle.detach()
if sys.argv[2] == "dropped":
    del handle
    model.zero_grad()
    model(torch.ones(1, 9)).sum().backward()
    del model
print("done")
"""


@pytest.mark.parametrize("how", first(["nothing", "destroy-first", "dropped"]))
def test_processes_end(tmp_path: Path, how: str) -> None:
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path / "store"), how],
            env={**os.environ, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for job in jobs:
            out, err = job.communicate(timeout=60)
            assert job.returncode == 0, err
            assert out == "done\n"
            assert "Traceback" not in err, err
            assert "terminate" not in err, err
    finally:
        for job in jobs:
            job.kill()
