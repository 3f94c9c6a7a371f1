"""Commands on emulated clusters: variables, output, exit codes, shaping; also on loopback."""

import errno
import json
import os
import sys
from collections import defaultdict

import pytest

from gradwire.errors import LabError
from gradwire.lab import Cluster, LabTimeoutError, available, job

needs_namespaces = [
    pytest.mark.lab,
    pytest.mark.skipif(available().mode == "none", reason=available().reason),
]
KINDS = [pytest.param(False, id="namespaces", marks=needs_namespaces), pytest.param(True, id="lo")]


class Heard:
    """Collects what ranks print."""

    def __init__(self):
        self.lines = defaultdict(list)

    def __call__(self, rank, stream, line):
        self.lines[rank, stream].append(line)

    def stdout(self, rank):
        return "\n".join(self.lines[rank, "stdout"])


def shell(words):
    return ["sh", "-c", words]


@pytest.fixture(scope="module", params=KINDS)
def lab(request):
    with Cluster(2, "1gbit", procs_per_host=2, loopback=request.param) as cluster:
        yield cluster


def test_each_process_sees_its_variables(lab):
    heard = Heard()
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    assert lab.run([sys.executable, "-c", program], env={"MINE": "x"}, on_line=heard) == 0
    seen = [json.loads(heard.stdout(rank)) for rank in range(4)]
    assert [v["RANK"] for v in seen] == list("0123")
    assert [v["LOCAL_RANK"] for v in seen] == list("0101")
    assert [v["GROUP_RANK"] for v in seen] == list("0011")
    assert {v["WORLD_SIZE"] for v in seen} == {"4"}
    assert {v["MASTER_ADDR"] for v in seen} == {"127.0.0.1" if lab.loopback else "10.77.0.1"}
    assert {v["GLOO_SOCKET_IFNAME"] for v in seen} == {"lo" if lab.loopback else "eth0"}
    assert {v["MINE"] for v in seen} == {"x"}


def test_the_port_changes_from_run_to_run(lab):
    ports = set()
    for _ in range(3):
        lab.run(shell("echo $MASTER_PORT"), on_line=lambda rank, stream, line: ports.add(line))
    assert len(ports) == 3


def test_output_is_prefixed_and_keeps_its_stream(lab, capsys):
    assert lab.run(shell("echo out$RANK; echo err$RANK >&2; printf unfinished")) == 0
    out, err = capsys.readouterr()
    expected = [f"[{rank}] {word}" for rank in range(4) for word in (f"out{rank}", "unfinished")]
    assert sorted(out.splitlines()) == sorted(expected)
    assert sorted(err.splitlines()) == [f"[{rank}] err{rank}" for rank in range(4)]


@pytest.mark.parametrize(
    ("words", "code"),
    [("exit 0", 0), ("[ $RANK != 2 ] || exit 7", 7), ("[ $RANK != 1 ] || kill -9 $$", 137)],
)
def test_exit_code(lab, words, code):
    assert lab.run(shell(words), on_line=Heard()) == code


@pytest.fixture
def impatient(monkeypatch):
    """The others are ended soon after the first failure, and killed soon after that."""
    monkeypatch.setattr(job, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(job, "_TERMINATION_SECONDS", 0.5)


def test_the_first_failure_counts_and_ends_the_others(lab, impatient):
    words = "if [ $RANK = 3 ]; then exit 5; fi; trap 'exit 9' TERM; sleep 600 & wait"
    assert lab.run(shell(words), on_line=Heard()) == 5


def test_a_rank_that_ignores_sigterm_ends_too(lab, impatient):
    words = "trap '' TERM; [ $RANK != 0 ] || exit 4; while :; do sleep 1; done"
    assert lab.run(shell(words), on_line=Heard()) == 4


def test_children_of_ranks_end_with_the_run(lab):
    # The child holds the pipe open, in a session of its own; run() must not wait for it.
    assert lab.run(shell("setsid sleep 600 & exit 0"), on_line=Heard()) == 0


def test_timeout_ends_the_ranks_and_says_which(lab):
    with pytest.raises(LabTimeoutError, match=r"rank\(s\) \[1\] still ran"):
        lab.run(shell("[ $RANK != 1 ] || sleep 600"), on_line=Heard(), timeout_seconds=5)
    assert lab.run(["true"]) == 0


def test_a_timeout_may_be_longer_than_the_kernel_waits_at_once(lab):
    assert lab.run(["true"], timeout_seconds=1e10) == 0


def test_unknown_program_is_an_error_and_the_cluster_goes_on(lab):
    with pytest.raises(LabError, match=r"'gw-no-such-program' cannot.*Check the name and PATH"):
        lab.run(["gw-no-such-program"])
    assert lab.run(["true"]) == 0


def test_a_script_without_its_python_is_told_what_to_put_before(lab, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(LabError, match=rf"cannot \(.*Put Python before it: python {script}\."):
        lab.run([str(script)])


def test_an_error_in_the_line_handler_comes_out(lab):
    def refuse(rank, stream, line):
        raise ZeroDivisionError(line)

    with (
        Cluster(1, "1gbit", loopback=True) as own,
        pytest.raises(ZeroDivisionError, match="hello"),
    ):
        own.run(shell("echo hello; sleep 600"), on_line=refuse)


def test_much_output_arrives_whole(lab):
    heard = Heard()
    assert lab.run(shell("seq 1 20000"), on_line=heard) == 0
    for rank in range(4):
        assert heard.lines[rank, "stdout"] == [str(n) for n in range(1, 20001)]


@pytest.mark.full
def test_gloo_reduces_over_the_cluster(lab):
    program = (
        "import torch, torch.distributed as d; d.init_process_group('gloo');"
        "x = torch.ones(1000) * d.get_rank(); d.all_reduce(x);"
        "print(int(x[0])); d.destroy_process_group()"
    )
    heard = Heard()
    assert lab.run([sys.executable, "-c", program], on_line=heard, timeout_seconds=120) == 0
    assert [heard.stdout(rank) for rank in range(4)] == ["6"] * 4


_TRAFFIC = """
import os, socket, time
from gradwire.lab import bytes_sent
rank = int(os.environ["RANK"]); address = os.environ["MASTER_ADDR"]
port = int(os.environ["MASTER_PORT"])
SIZE = 1_000_000

def connect(to):
    while True:
        try:
            return socket.create_connection((address, to))
        except ConnectionRefusedError:
            time.sleep(0.01)

if rank == 0:
    for source in (1, 2):
        with socket.create_server((address, port + source)) as server:
            peer, _ = server.accept()
            before = bytes_sent(); peer.sendall(bytes(SIZE)); peer.recv(1)
            print(source, bytes_sent() - before)
elif rank < 3:
    peer = connect(port + rank)
    left = SIZE
    while left: left -= len(peer.recv(left))
    peer.sendall(b"!")
"""


@pytest.mark.lab
@pytest.mark.skipif(available().mode == "none", reason=available().reason)
def test_only_traffic_between_hosts_crosses_the_shaped_link():
    heard = Heard()
    with Cluster(2, "1gbit", procs_per_host=2) as cluster:
        assert (
            cluster.run([sys.executable, "-c", _TRAFFIC], on_line=heard, timeout_seconds=60) == 0
        )
    same_host, other_host = (int(line.split()[1]) for line in heard.lines[0, "stdout"])
    assert same_host < 50_000
    assert 1_000_000 <= other_host < 1_200_000


@pytest.mark.lab
@pytest.mark.skipif(available().mode != "root", reason="looks at the switch, as root")
def test_every_link_is_shaped_both_ways():
    heard = Heard()
    with Cluster(3, "10mbit") as cluster:
        assert cluster.run(shell("tc qdisc show dev eth0"), on_line=heard) == 0
        ports = json.loads(cluster._entered().look({"switch": ["link show"]})["answers"]["switch"])
    for rank in range(3):
        assert "tbf" in heard.stdout(rank)
        assert "9843Kbit" in heard.stdout(rank)
    shaped = {port["ifname"] for port in ports if port["qdisc"] == "tbf"}
    assert shaped == {"host0", "host1", "host2"}
    ends = [end for cable in cluster._wiring.cables for end in (cable.near, cable.far)]
    assert {end.shaping.bits_per_second for end in ends} == {9_843_953}


@pytest.mark.lab
@pytest.mark.skipif(available().mode == "none", reason=available().reason)
def test_two_clusters_stand_side_by_side():
    heard = Heard()
    with Cluster(2, "1gbit") as one, Cluster(3, "100mbit") as two:
        assert one.run(shell("hostname; exit 3"), on_line=heard) == 3
        assert two.run(shell("hostname"), on_line=heard) == 0
        with pytest.raises(LabError, match="entered only once at a time"):
            one.__enter__()
    assert heard.stdout(2) == "host2"
    assert heard.stdout(0).splitlines() == ["host0", "host0"]


def test_ranks_run_at_the_same_time(lab, tmp_path):
    # Each waits until all four have left a file, so it would hang if they ran one after the other.
    words = f"cd {tmp_path}; touch $RANK; while [ $(ls | wc -l) -lt 4 ]; do sleep 0.05; done"
    assert lab.run(shell(words), on_line=Heard(), timeout_seconds=60) == 0


def test_more_ranks_than_files_may_be_open(monkeypatch):
    def refused():
        raise OSError(errno.EMFILE, "Too many open files")

    with Cluster(2, loopback=True) as cluster:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pipe", refused)
            with pytest.raises(LabError, match=r"rank 0 cannot be opened: Too many .* ulimit -n"):
                cluster.run(["true"])
        assert cluster.run(["true"]) == 0
