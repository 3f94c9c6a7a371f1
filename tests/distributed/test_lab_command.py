"""`gradwire lab` as a user types it."""

import json
import os
import subprocess
import sys

import pytest

from gradwire.lab import available
from gradwire.lab.guarded import with_package_on_path


def lab(*words):
    return subprocess.run(
        [sys.executable, "-m", "gradwire", "lab", *words],
        env=with_package_on_path(os.environ),
        capture_output=True,
        text=True,
        timeout=150,
    )


def run_on_loopback(*words, options=()):
    return lab("run", "--hosts", "2", "--loopback", *options, "--", *words)


def test_run_prefixes_and_passes_the_exit_code():
    done = run_on_loopback("sh", "-c", "echo hello; exit $((RANK * 3))")
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["[0] hello", "[1] hello"]


def test_loopback_says_plainly_that_it_is_unshaped():
    assert "127.0.0.1, at full speed: --rate has no effect" in run_on_loopback("true").stderr


def test_json_is_alone_on_standard_output():
    done = run_on_loopback("sh", "-c", "echo hello; exit 4", options=["--json"])
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 4
    assert document["command"] == ["sh", "-c", "echo hello; exit 4"]
    assert (document["hosts"], document["mode"]) == (2, "loopback")
    assert document["bits_per_second"] is None
    assert "[0] hello" in done.stderr


def test_words_of_the_command_are_its_own():
    done = run_on_loopback("echo", "--json", "--", "--hosts", "9")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] --json -- --hosts 9" for rank in (0, 1)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--loopback"], "needs the command that every rank runs"),
        (["run", "--loopback", "--hosts", "0", "--", "true"], "hosts must be a whole number"),
        (["run", "--loopback", "--rate", "fast", "--", "true"], "a rate must be a number"),
        (["probe", "--loopback", "--hosts", "1"], "at least 2 hosts"),
    ],
)
def test_mistakes_are_explained(words, message):
    done = lab(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_timeout_has_its_own_exit_code():
    done = run_on_loopback("sleep", "600", options=["--timeout", "1"])
    assert done.returncode == 124
    assert "must end within its timeout" in done.stderr


def test_timeout_as_json():
    done = run_on_loopback("sleep", "600", options=["--timeout", "1", "--json"])
    assert json.loads(done.stdout)["error"] == "LabTimeoutError"


@pytest.mark.full
def test_probe_on_loopback():
    done = lab("probe", "--loopback", "--hosts", "2", "--json")
    (report,) = json.loads(done.stdout)["probes"]
    assert report["delivered_percent"] is None
    assert report["all_reduce_bits_per_second"] > 0


@pytest.mark.full
@pytest.mark.lab
@pytest.mark.skipif(available().mode == "none", reason=available().reason)
def test_probe_counts_what_a_ring_must_send():
    done = lab("probe", "--hosts", "3", "--rate", "100mbit", "--json")
    (report,) = json.loads(done.stdout)["probes"]
    # One all-reduce to warm up and three timed; each of 3 hosts sends 2(n−1)/n of the bytes, and
    # small headers.
    ring_bytes = 4 * 3 * report["all_reduce_bytes"] * 4 / 3
    assert ring_bytes <= report["bytes_sent"] < 1.12 * ring_bytes
    assert 0 < report["all_reduce_bits_per_second"] < 100e6
    assert 0 < report["incast_bits_per_second"] < 100e6


@pytest.mark.full
def test_probe_prints_for_people():
    done = lab("probe", "--loopback", "--hosts", "2")
    assert "asked of each link: nothing (unshaped)" in done.stdout
    assert "incast" in done.stdout
