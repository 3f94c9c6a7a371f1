"""One host of the lab: starts this host's rank of each scenario in a process of its own.

    host ──fork──► rank of scenario 0, attempt 1 ──► its story, as JSON
      ├───fork──► rank of scenario 0, attempt 2 ─── …
      └───fork──► rank of scenario 1, attempt 1 ─── …

The host imports torch once. It lets a stopped rank go on, ends one that hangs, and mends its link.
Hosts wait for one another between attempts, by files.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import job
import torch
import torch._dynamo  # which optimizers and DDP import when they are first used
from scenario import NEEDS_LINKS, Scenario, scenario
from strikes import mend_link

import gradwire.collectives
import gradwire.compressors
import gradwire.feedback
import gradwire.tuning.attach  # noqa: F401 - loaded once, and not by every child

STOPPED_SECONDS = {"stopped briefly": 1.0, "stopped for long": 20.0}

PATIENCE_SECONDS = 45.0
"""A rank may take so much longer than its timeout, or it hangs: twice the longest way to an error
that was seen, on a slow machine."""


def main() -> None:
    """Runs scenarios: the folder, then their seeds."""
    folder, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]]
    host, hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    gc.freeze()  # children do not look through what was imported
    for seed in seeds:
        own = scenario(seed)
        for attempt in (1, 2) if own.resumes else (1,):
            place = folder / f"{seed}"
            place.mkdir(exist_ok=True)
            if host < own.world:
                _ended(own, host, place, attempt)
                if own.kind in NEEDS_LINKS:
                    mend_link()
            (place / f"over-{attempt}-{host}").touch()
            _wait_for(place, attempt, hosts)


def _ended(own: Scenario, rank: int, place: Path, attempt: int) -> None:
    """Starts a rank, waits for its end, and writes how it ended."""
    pid = os.fork()
    if pid == 0:
        _be_rank(own, rank, place, attempt)
    limit = own.timeout_seconds + PATIENCE_SECONDS + 2.0 * own.job.steps
    deadline, how = time.monotonic() + limit, {"code": 0, "hung": False}
    goes_on = deadline
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        now = time.monotonic()
        if found and os.WIFSTOPPED(status):
            goes_on = now + STOPPED_SECONDS[own.kind]
            deadline += STOPPED_SECONDS[own.kind]
        elif found:
            how["code"] = os.waitstatus_to_exitcode(status)
            break
        if now > goes_on:
            os.kill(pid, signal.SIGCONT)
            goes_on = deadline
        if now > deadline:
            how["hung"] = True
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)
            deadline = now + 60.0
        time.sleep(0.01)
    _write(place / f"ended-{attempt}-{rank}.json", how)


def _be_rank(own: Scenario, rank: int, place: Path, attempt: int) -> None:
    """Runs the job, writes its story, and ends this process as a script ends."""
    with open(place / f"output-{attempt}-{rank}", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        faulthandler.register(signal.SIGUSR1, file=output, all_threads=True)
        story = job.run(own, rank, place, attempt)
        _write(place / f"story-{attempt}-{rank}.json", story)
        output.flush()
        atexit._run_exitfuncs()
        os._exit(1 if story["raised"] else 0)


def _write(path: Path, content: dict[str, object]) -> None:
    """Writes a file that is whole as soon as it is there."""
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").rename(path)


def _wait_for(place: Path, attempt: int, hosts: int) -> None:
    while not all((place / f"over-{attempt}-{h}").exists() for h in range(hosts)):
        time.sleep(0.01)


if __name__ == "__main__":
    main()
