"""However a job ends, its processes end: no hang, no abort from a thread that is still waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from ranks import Ranks
from small import attached, raised
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from suites import first

JOB = """
import os, signal, sys, torch, torch.distributed as dist, gradwire
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1],
                        rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.Linear(9, 9)
if sys.argv[2] == "forked ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
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
if sys.argv[2].startswith("forked"):
    rows = torch.utils.data.DataLoader(torch.ones(4, 9), num_workers=2,
                                       multiprocessing_context="fork")
    for x in rows:
        model.zero_grad()
        model(x).sum().backward()
    child = os.fork()
    if not child:
        signal.alarm(50)  # it shall not wait for what only its parent has
        calls = [lambda: model(torch.ones(1, 9)).sum().backward(), handle.flush]
        for call in calls:
            try:
                call()
            except gradwire.errors.UsageError as error:
                assert "is a fork of" in str(error), error
                assert "Call handle.detach() here" in str(error), error
            else:
                raise AssertionError("gradients of this process alone")
        assert not handle.attached
        handle.detach()
        try:
            model(torch.ones(1, 9)).sum().backward()
        except gradwire.errors.UsageError as error:
            assert "Train or evaluate the DDP's .module here" in str(error), error
            model.module(torch.ones(1, 9)).sum().backward()
        else:
            assert sys.argv[2] == "forked"
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    model.zero_grad()
    model(torch.ones(1, 9)).sum().backward()
print("done")
"""


@pytest.mark.parametrize(
    "how", first(["forked", "nothing", "forked ddp", "destroy-first", "dropped"])
)
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
            out, err = job.communicate(timeout=110)
            assert job.returncode == 0, err
            assert out == "done\n"
            assert "Traceback" not in err, err
            assert "terminate" not in err, err
    finally:
        for job in jobs:
            job.kill()


def fork_of_ddp() -> int:
    """The exit code of a fork that trains a DDP model, which only its parent's ranks know."""
    x = torch.ones(1, 9)
    model = DistributedDataParallel(nn.Linear(9, 9))
    with attached(model, "topk(0.1)+ef | allgather", lanes=2) as handle:
        for _ in range(2):  # DDP itself exchanges something as the second forward begins
            model(x).sum().backward()
            model.zero_grad()
        child = os.fork()
        if not child:
            signal.alarm(50)  # it shall not wait for what only its parent has
            with Leaving():
                assert "is a fork of" in raised(lambda: model(x).sum().backward())
                handle.detach()
                assert "the DDP's .module here" in raised(lambda: model(x).sum().backward())
                model.module(x).sum().backward()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        model.zero_grad()
        model(x).sum().backward()
    return code


class Leaving:
    """Ends this process when its block ends."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        traceback.print_exc()
        os._exit(kind is not None)


def test_a_fork_of_ddp_is_told_to_take_the_module(two: Ranks) -> None:
    assert two.run(fork_of_ddp) == [0, 0]
