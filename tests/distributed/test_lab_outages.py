"""Links of the lab that go down under a running job, and come back."""

from __future__ import annotations

import sys

import pytest

from gradwire.errors import LabError
from gradwire.lab import Cluster, Outage, available
from gradwire.network import leaf_spine

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(available().mode == "none", reason=available().reason),
]
PINGS = """
import os, socket, sys, time

rank, address, last = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2])
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if rank == 0:
    own.setblocking(False)
    for number in range(6000):  # a minute
        try:
            own.sendto(b"%d" % number, (address, 7000))
        except OSError:
            pass
        time.sleep(0.01)
        try:
            own.recv(100)
            sys.exit(0)
        except BlockingIOError:
            pass
    sys.exit(3)
if rank == last:
    own.bind(("", 7000))
    own.settimeout(60)
    before = None
    while True:
        data, sender = own.recvfrom(100)
        if before is not None and int(data) > before + 9:
            print("missed", int(data) - before - 1, flush=True)
            for _ in range(3):
                own.sendto(b"seen", sender)
            sys.exit(0)
        before = int(data)
"""
"""Sends a packet every ten milliseconds until some were missed and others came after these."""


def again_and_again(link: str) -> list[Outage]:
    """Half a second in three: a job that starts late, on a busy machine, sees a later outage."""
    return [Outage(link, second, second + 0.5) for second in range(2, 59, 3)]


def missed(lab: Cluster, outages: list[Outage], address: str) -> int:
    """The number of packets that were missed while the link was down; those before and after
    came."""
    said: list[str] = []
    command = [sys.executable, "-c", PINGS, address, str(lab.ranks - 1)]
    code = lab.run(
        command, outages=outages, timeout_seconds=90,
        on_line=lambda rank, stream, line: said.append(line),
    )  # fmt: skip
    assert code == 0, said
    (line,) = said
    return int(line.split()[1])


def test_a_hosts_link_goes_down_and_comes_back():
    with Cluster(2, "100mbit") as lab:
        assert missed(lab, again_and_again("host1"), lab.address(1)) >= 10
        assert missed(lab, again_and_again("host1"), lab.address(1)) >= 10, "as before"


def test_links_of_switches_come_back_with_their_routes():
    """A host's link below a leaf, and a leaf's link to the spine that packets are pinned to; other
    spines go on."""
    topology = leaf_spine(leaves=2, hosts=1, spines=2)
    with Cluster(topology=topology, rate="100mbit") as lab:
        assert missed(lab, again_and_again("host1"), lab.address(1)) >= 10
        cut = [*again_and_again("leaf1-spine1"), Outage("spine0-leaf0", 0.0)]
        assert missed(lab, cut, lab.address(1, 1)) >= 10


REACH = """
import os, socket, sys, time

own = socket.socket()
if os.environ["RANK"] == "1":
    own.bind(("", 7001))
    own.listen()
    own.settimeout(30)
    own.accept()
else:
    for _ in range(300):
        try:
            socket.create_connection((sys.argv[1], 7001), 0.3).close()
            break
        except OSError:  # at once, while the other is not there yet
            time.sleep(0.1)
    else:
        sys.exit(1)
"""


def test_all_links_are_up_when_the_command_has_ended():
    """Links come up that were to stay down to the end, or to come back only later."""
    with Cluster(2, "100mbit") as lab:
        down = [Outage("host1", 0.0), Outage("host0", 0.0, 1000.0)]
        assert lab.run(["sleep", "0.3"], outages=down) == 0
        assert lab.run([sys.executable, "-c", REACH, lab.address(1)]) == 0


def test_outages_of_nothing_are_refused():
    with Cluster(2, "100mbit") as lab:
        words = r"link of a host, .* got 'host2'.* host0 or host1-"
        with pytest.raises(LabError, match=words):
            lab.run(["true"], outages=[Outage("host2", 0.0)])
        assert lab.run(["true"]) == 0
