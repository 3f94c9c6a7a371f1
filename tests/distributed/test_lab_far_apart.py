"""Hosts of the lab that are far from each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gradwire.lab import Cluster, Outage, available
from gradwire.lab.guarded import with_package_on_path

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(available().mode == "none", reason=available().reason),
]
PINGS = """
import os, socket, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.settimeout(0.3)
if os.environ["RANK"] == "1":
    own.bind(("", 7000))
    own.settimeout(30.0)
    while (told := own.recvfrom(100))[0] != b"end":
        own.sendto(*told)
else:
    took = []
    while len(took) < 4:
        began = time.perf_counter()
        own.sendto(b"%d" % len(took), ("ADDRESS", 7000))
        try:
            while own.recv(100) != b"%d" % len(took):
                pass  # an earlier one, which was late
            took.append(time.perf_counter() - began)
        except OSError:
            time.sleep(0.05)
    for _ in range(60):
        try:
            own.sendto(b"end", ("ADDRESS", 7000))
        except OSError:
            pass
    print(min(took))
"""


def shortest_trip(lab: Cluster, outages: tuple[Outage, ...] = ()) -> float:
    said: list[str] = []
    command = [sys.executable, "-c", PINGS.replace("ADDRESS", lab.address(1))]
    code = lab.run(
        command, outages=outages, timeout_seconds=60.0,
        on_line=lambda rank, stream, line: said.append(line),
    )  # fmt: skip
    assert code == 0, said
    return float(said[0])


def test_a_round_trip_takes_twice_the_delay():
    with Cluster(2, "100mbit", delay="30ms", jitter="5ms", loss="10%") as lab:
        assert shortest_trip(lab) >= 2 * 0.025
        first = lab.forwarded()
        assert shortest_trip(lab, (Outage("host1", 0.0, 0.4),)) >= 2 * 0.025
        both = lab.forwarded()
        assert first is not None
        assert both is not None
        assert 10 < first.frames < both.frames, "it goes on after a run, and after an outage"
        assert 0 < both.lost < both.frames / 2
        assert both.processor_seconds > first.processor_seconds > 0


MEASURED = """
import os, torch, torch.distributed as dist
from gradwire.runtime.clocks import one_way_seconds
dist.init_process_group("gloo")
print(one_way_seconds(dist.group.WORLD), flush=True)
dist.barrier()
os._exit(0)
"""


def test_ranks_measure_how_far_they_are_from_each_other():
    said: list[str] = []
    with Cluster(3, "1gbit", delay="15ms") as lab:
        command = [sys.executable, "-c", MEASURED]
        code = lab.run(
            command, env={"PYTHONPATH": with_package_on_path(os.environ)["PYTHONPATH"]},
            on_line=lambda rank, stream, line: said.append(line), timeout_seconds=100.0,
        )  # fmt: skip
    assert code == 0, said
    assert len(said) == 3
    assert len(set(said)) == 1, "one number for all"
    assert float(said[0]) >= 0.015


def test_the_command_tells_what_the_switch_did():
    command = [sys.executable, "-m", "gradwire", "lab", "run", "--hosts", "2", "--delay", "1ms"]
    environment = with_package_on_path(os.environ)
    done = subprocess.run(
        [*command, "--json", "--", "true"], env=environment, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["distance"] == {"seconds": 0.001, "jitter_seconds": 0.0, "loss": 0.0}
    assert set(document["forwarded"]) == {"frames", "lost", "refused", "processor_seconds"}
    assert "2 hosts × 1 on one switch, every link 1 gbit/s each way, 1 ms one way" in done.stderr
    with Cluster(2, "1gbit") as near:
        assert near.forwarded() is None
