"""Kills ranks and starts them again, for an hour, while the others go on (on_failure="shrink").

    python benchmarks/faults/kill_and_return.py --json benchmarks/faults/results/returns.json

Rank 3 is never killed, and is watched: its threads, sockets and memory must not grow. The loss at
the end stands beside that of undisturbed runs of as many steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

import gradwire

WORLD, WITNESS = 4, 3
PACE_SECONDS = 0.03
"""A step takes at least so long: an hour of them would else fill both processors."""
LAST = 2000
"""The loss is the mean of so many steps, the last ones."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds from loss to loss")
    parser.add_argument("--plan", default="topk(0.05)+ef | allgather")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        train()
        return 0
    disturbed = Run(arguments.plan, minutes=arguments.minutes, kill_every=arguments.every)
    steps = disturbed.end["step"]
    calm = [Run(arguments.plan, steps=steps, seed=seed).end["loss"] for seed in (1, 2)]
    told = {"plan": arguments.plan, "disturbed": disturbed.found(), "undisturbed losses": calm}
    print(json.dumps(told, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


class Run:
    """One run of all ranks, to its end."""

    def __init__(
        self, plan: str, minutes: float = 0.0, steps: int = 0, kill_every: float = 0.0,
        seed: int = 0,
    ) -> None:  # fmt: skip
        limit = timedelta(seconds=60)
        store = TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
        self._environment = {
            **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(WORLD), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PLAN": plan, "SEED": f"{seed}",
            "STEPS": f"{steps or int(60 * minutes / (1.4 * PACE_SECONDS))}",
            "PACE": f"{PACE_SECONDS if minutes else 0.0}",
        }  # fmt: skip
        self._dice, self.kills = random.Random(seed), 0
        self._lines = list[dict[str, float]]()
        self._ranks = [self._start(rank) for rank in range(WORLD)]
        self._watch(kill_every)
        self.end = self._lines[-1]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__], env={**self._environment, "RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE if rank == WITNESS else None,
        )  # fmt: skip

    def _watch(self, kill_every: float) -> None:
        """Reads what the witness says; kills another rank now and then, and starts it again."""
        witness = self._ranks[WITNESS]
        assert witness.stdout is not None
        due = time.monotonic() + 2 * kill_every
        for line in witness.stdout:
            self._lines.append(json.loads(line))
            for rank, process in enumerate(self._ranks):
                if process.poll() not in (None, 0) and rank != WITNESS:
                    self._ranks[rank] = self._start(rank)
            if kill_every and time.monotonic() > due:
                self._ranks[self._dice.randrange(WITNESS)].send_signal(signal.SIGKILL)
                self.kills += 1
                due = time.monotonic() + kill_every * (0.5 + self._dice.random())
        for process in self._ranks:
            process.kill()
            process.wait()
        if witness.returncode:
            raise RuntimeError(f"the rank that is never killed ended with {witness.returncode}")

    def found(self) -> dict[str, object]:
        """Returns what the witness saw: means of its first and last tenth, and the worst step."""
        tenth = max(1, len(self._lines) // 10)
        early, late = self._lines[tenth : 2 * tenth], self._lines[-tenth:]
        grown = {
            key: [statistics.mean(line[key] for line in part) for part in (early, late)]
            for key in ("threads", "sockets", "rss_mb")
        }
        lost = [line["slowest"] for line in self._lines if line["slowest"] > 1.0]
        return {
            "steps": self.end["step"], "seconds": self.end["seconds"], "kills": self.kills,
            "changes of ranks": self.end["changes"], "loss": self.end["loss"],
            "from the first tenth to the last": grown,
            "steps beyond a second": len(lost), "median of these": statistics.median(lost or [0]),
            "longest": max(lost, default=0.0),
        }  # fmt: skip


def train() -> None:
    """The job of one rank: a student learns a noisy teacher. The witness prints what it sees."""
    torch.set_num_threads(1)
    gradwire.init_process_group("gloo", timeout_seconds=120.0)
    last, pace = int(os.environ["STEPS"]), float(os.environ["PACE"])
    rank, began = int(os.environ["RANK"]), time.monotonic()
    torch.manual_seed(5)
    teacher, student = (
        nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(2)
    )
    optimizer = torch.optim.SGD(student.parameters(), 0.02, momentum=0.9)
    handle = gradwire.attach(
        student, os.environ["PLAN"], optimizer=optimizer, on_failure="shrink",
        timeout_seconds=30.0, bucket_bytes=4096,
    )  # fmt: skip
    dice = torch.Generator().manual_seed(1000 * int(os.environ["SEED"]) + os.getpid() % 1000)
    losses, slowest, changes, world = [0.0] * LAST, 0.0, 0, WORLD
    told = before = time.monotonic()
    while handle.step < last:
        optimizer.zero_grad()
        loss = _loss(teacher, student, dice)
        loss.backward()
        optimizer.step()
        losses[handle.step % LAST] = loss.item()
        time.sleep(max(0.0, pace - (time.monotonic() - before)))
        now = time.monotonic()
        slowest, before = max(slowest, now - before), now
        changes, world = changes + (world != dist.get_world_size()), dist.get_world_size()
        if rank == WITNESS and now - told > 1.0:
            _tell(handle.step, now - began, slowest, changes, statistics.mean(losses))
            told, slowest = now, 0.0
    if rank == WITNESS:
        _tell(handle.step, before - began, slowest, changes, statistics.mean(losses))
    handle.detach()
    dist.destroy_process_group()


def _loss(teacher: nn.Module, student: nn.Module, dice: torch.Generator) -> Tensor:
    inputs = torch.randn(16, 32, generator=dice)
    with torch.no_grad():
        wanted = teacher(inputs) + 0.1 * torch.randn(16, 16, generator=dice)
    return (student(inputs) - wanted).square().mean()


def _tell(step: int, seconds: float, slowest: float, changes: int, loss: float) -> None:
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    files = [os.readlink(f"/proc/self/fd/{n}") for n in _files()]
    line = {
        "step": step, "seconds": seconds, "slowest": slowest, "changes": changes, "loss": loss,
        "threads": int(status["Threads"]), "sockets": sum("socket" in file for file in files),
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def _files() -> list[str]:
    """Returns the open files, without the one that was open to list them."""
    return [n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]


if __name__ == "__main__":
    raise SystemExit(main())
