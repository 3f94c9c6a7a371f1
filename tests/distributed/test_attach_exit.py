"""However a job ends, its processes end: no hang, no abort from a thread that is still waiting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forked import FORKED

from suites import first

JOB = """
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
    "how", first(["forked", "forked ddp", "nothing", "destroy-first", "dropped"], 3)
)
def test_processes_end(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED + JOB, str(tmp_path / "store"), how],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n" * 2
    assert "Traceback" not in done.stderr, done.stderr
    assert "terminate" not in done.stderr, done.stderr
