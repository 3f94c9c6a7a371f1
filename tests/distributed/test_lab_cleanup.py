"""Nothing is left: after any kind of end the machine is as it was, and nothing foreign changed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from gradwire.lab import Cluster, available
from gradwire.lab.guarded import _launch, with_package_on_path
from gradwire.lab.wire import connection, send
from suites import first

MODE = available().mode
needs_namespaces = [
    pytest.mark.lab,
    pytest.mark.skipif(MODE == "none", reason=available().reason),
]
KINDS = [
    pytest.param([], id="namespaces", marks=needs_namespaces),
    pytest.param(["--loopback"], id="lo"),
]
ENVIRONMENT = with_package_on_path(os.environ)
PATIENCE_SECONDS = 100  # only a hang takes this long


def network():
    """What this machine's own namespace shows: named namespaces, interfaces, queues, mounts."""
    tools = [["ip", "netns", "list"], ["ip", "-o", "link"], ["tc", "qdisc"]]
    shown = [
        subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        for tool in tools
        if shutil.which(tool[0])
    ]
    return [*shown, Path("/proc/self/mounts").read_text(), os.uname().nodename]


def processes_of(mark):
    """Numbers of the processes that have the mark in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark.encode() in (
                entry.joinpath("cmdline").read_bytes() + entry.joinpath("environ").read_bytes()
            ):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def mark():
    return f"gw-test-{uuid.uuid4().hex}"


@pytest.fixture(autouse=True)
def _nothing_changes(mark):
    before = network()
    yield
    wait_until(lambda: not processes_of(mark))
    assert network() == before


def _hears_ctrl_c():
    """Restores SIGINT, which processes in the background of a shell script inherit as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(mark, options, words):
    """Starts `gradwire lab run` and waits until every rank has said that it is ready."""
    command = [sys.executable, "-m", "gradwire", "lab", "run", "--hosts", "2", *options, "--"]
    process = subprocess.Popen(
        [*command, "sh", "-c", words],
        env={**ENVIRONMENT, "GW_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=_hears_ctrl_c,
    )
    ready = sorted(process.stdout.readline() for _ in range(2))
    assert ready == ["[0] ready\n", "[1] ready\n"]
    return process


def end(process):
    with process.stdout:
        return process.wait(PATIENCE_SECONDS)


def end_by_kill(process):
    process.kill()
    assert end(process) == -signal.SIGKILL


# A rank with a child in its group, and another child in a session of its own.
STUBBORN = "sleep 600 & setsid sleep 600 & echo ready; wait"


@pytest.mark.once
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
    ("number", "code"),
    first([(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, 143)], 2),
)
def test_after_a_signal_to_the_lab(mark, options, number, code):
    process = start(mark, options, STUBBORN)
    assert len(processes_of(mark)) >= 7
    process.send_signal(number)
    assert end(process) == code
    wait_until(lambda: not processes_of(mark))


@pytest.mark.parametrize("options", KINDS)
def test_ctrl_c_reaches_ranks_that_tidy_up(mark, options, tmp_path):
    words = f"trap 'touch {tmp_path}/tidy-'$RANK'; exit' TERM; echo ready; sleep 600 & wait"
    process = start(mark, options, words)
    os.killpg(process.pid, signal.SIGINT)
    assert end(process) == 130
    assert sorted(os.listdir(tmp_path)) == ["tidy-0", "tidy-1"]


@pytest.mark.parametrize("options", KINDS)
def test_a_second_ctrl_c_ends_it_at_once(mark, options, tmp_path):
    words = f"trap 'touch {tmp_path}/told-'$RANK TERM; echo ready; while :; do sleep 1; done"
    process = start(mark, options, words)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: len(os.listdir(tmp_path)) == 2)  # by the first signal, which they ignore
    process.send_signal(signal.SIGINT)
    assert end(process) == 130


@pytest.mark.parametrize("options", KINDS)
def test_after_the_guard_is_killed(mark, options):
    process = start(mark, options, STUBBORN)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    assert end(process) == 2
    if options:  # a killed loopback guard cannot end processes in other sessions
        for pid in processes_of(mark):
            os.kill(pid, signal.SIGKILL)


def test_a_guard_whose_lab_is_gone_has_nobody_to_tell(capfd):
    """As after Ctrl-C while it builds the network."""
    ours, far_end = connection()
    with far_end:
        guard = _launch(far_end)
    with ours:
        send(ours, {"mode": "none"})
    assert guard.wait(PATIENCE_SECONDS) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("options", KINDS)
def test_a_forked_child_of_the_lab_does_not_keep_it_alive(mark, options):
    # The child has copies of all open files of the lab; only the lab's own end may count.
    program = (
        "import os, time; from gradwire.lab import Cluster\n"
        f"cluster = Cluster(1, '1gbit', loopback={bool(options)}).__enter__()\n"
        "if os.fork() == 0: os.close(1); time.sleep(600)\n"
        "cluster.run(['sh', '-c', 'echo ready; sleep 600'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "GW_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("[0] ready")
    end_by_kill(process)
    wait_until(lambda: len(processes_of(mark)) <= 1)
    for forked in processes_of(mark):
        os.kill(forked, signal.SIGKILL)


@pytest.mark.lab
@pytest.mark.skipif(MODE == "none", reason=available().reason)
def test_after_an_exception(mark):
    with pytest.raises(ZeroDivisionError), Cluster(3, "1gbit"):
        raise ZeroDivisionError


@pytest.mark.lab
@pytest.mark.skipif(MODE == "none", reason=available().reason)
def test_after_many_clusters(mark):
    for _ in range(5):
        with Cluster(4, "1gbit") as cluster:
            assert cluster.run(["true"], env={"GW_TEST_MARK": mark}) == 0
    assert len(os.listdir("/proc/self/fd")) < 100


@pytest.mark.lab
@pytest.mark.skipif(MODE != "root", reason="makes a named namespace, as root")
def test_next_start_after_a_killed_run_touches_nothing_foreign(mark):
    foreign = f"gradwire-lab-{os.getpid()}"
    made_folder = not os.path.exists("/run/netns")
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        before = network()
        end_by_kill(start(mark, [], STUBBORN))
        with Cluster(2, "1gbit") as cluster:
            assert cluster.run(["true"]) == 0
        wait_until(lambda: not processes_of(mark))
        assert network() == before
        assert foreign in network()[0]
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)
        if made_folder:  # `ip` made and mounted it for this test
            subprocess.run(["umount", "/run/netns"], check=False, capture_output=True)
            os.rmdir("/run/netns")


def without_privilege():
    """Returns words that start a command without root's rights, or None if that cannot be
    tried."""
    keep = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"]
    return keep if shutil.which("setpriv") and os.geteuid() == 0 else None


@pytest.mark.lab
@pytest.mark.skipif(without_privilege() is None, reason="drops root's capabilities with setpriv")
def test_rootless(mark):
    program = (
        "import json; from gradwire.lab import Cluster, available\n"
        "found = available(); print(json.dumps([found.mode, found.reason]), flush=True)\n"
        "if found.mode != 'none':\n"
        "    with Cluster(2, '1gbit') as c: raise SystemExit(c.run(['sh', '-c', 'hostname']))\n"
    )
    done = subprocess.run(
        [*without_privilege(), sys.executable, "-c", program],
        env={**ENVIRONMENT, "GW_TEST_MARK": mark},
        capture_output=True,
        text=True,
    )
    found, *lines = done.stdout.splitlines()
    mode, reason = json.loads(found)
    if mode == "none":
        pytest.skip(f"user namespaces are refused: {reason}")
    assert (mode, done.returncode) == ("rootless", 0), done.stderr
    assert sorted(lines) == ["[0] host0", "[1] host1"]
