"""What the lab refuses before it builds anything, and with which words."""

import json
import subprocess
import sys

import pytest

from gradwire.cli import lab as command
from gradwire.cli.main import main
from gradwire.errors import LabError
from gradwire.lab import (
    Availability,
    Cluster,
    available,
    bytes_sent,
    cluster,
    counters,
    network,
    parse_rate,
)
from gradwire.lab.availability import how_to_allow, refused
from gradwire.lab.guarded import with_package_on_path
from gradwire.lab.network import find_tool
from gradwire.lab.probe import probe


@pytest.mark.parametrize("hosts", [0, -1, 257, 1.5, True, "4"])
def test_hosts_outside_the_range(hosts):
    with pytest.raises(LabError, match=r"hosts must be .* from 1 to 256; got .*\. Choose"):
        Cluster(hosts, "1gbit")


@pytest.mark.parametrize("count", [0, -2, None])
def test_processes_per_host_outside_the_range(count):
    with pytest.raises(LabError, match="procs_per_host must be a whole number from 1"):
        Cluster(1, "1gbit", procs_per_host=count)


def test_bad_rate_is_refused_at_once():
    with pytest.raises(LabError, match="a rate must be a number"):
        Cluster(2, "quick")


def test_run_outside_the_with_block():
    with pytest.raises(LabError, match=r"is not entered.*Write: with Cluster"):
        Cluster(1, "1gbit", loopback=True).run(["true"])


@pytest.mark.parametrize("command", [[], (), "true", [1]])
def test_commands_that_are_no_list_of_words(command):
    with (
        Cluster(1, "1gbit", loopback=True) as lab,
        pytest.raises(LabError, match=r"list of strings.*Write for example"),
    ):
        lab.run(command)


def test_variables_that_are_no_texts_do_not_end_the_lab():
    with Cluster(1, "1gbit", loopback=True) as lab:
        with pytest.raises(LabError, match=r"must be text; got env=\{'STEPS': 3\}\. Pass .*'3'\}"):
            lab.run(["true"], env={"STEPS": 3})
        assert lab.run(["true"], env={"STEPS": "3"}) == 0


def test_where_namespaces_are_impossible_the_reason_and_loopback_are_named(monkeypatch):
    monkeypatch.setattr(cluster, "available", lambda: Availability("none", "forbidden by test"))
    with (
        pytest.raises(LabError, match=r"forbidden by test.*Or use loopback=True: .*at full speed"),
        Cluster(2, "1gbit"),
    ):
        pass


def test_the_command_line_is_told_its_own_option(monkeypatch, capsys):
    monkeypatch.setattr(command, "available", lambda: Availability("none", "forbidden by test"))
    for words in (["lab", "run", "--", "true"], ["lab", "probe"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "forbidden by test" in said
        assert "Or use --loopback" in said
        assert "loopback=True" not in said


def test_how_to_allow_namespaces_is_read_from_the_kernel_s_switches(tmp_path):
    assert "docker run --privileged" in how_to_allow(tmp_path)
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    (tmp_path / "kernel" / "unprivileged_userns_clone").write_text("1\n")
    wanted = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0."
    assert how_to_allow(tmp_path) == f"To allow them: {wanted}"


def test_available_says_why():
    found = available()
    assert found.mode in ("root", "rootless", "none")
    assert found.reason


def test_bytes_sent_outside_the_lab_says_where_it_belongs(monkeypatch):
    monkeypatch.setenv("GRADWIRE_LAB_INTERFACE", "gw-missing")
    with pytest.raises(LabError, match=r"no 'gw-missing'.*gradwire lab run"):
        bytes_sent()
    monkeypatch.delenv("GRADWIRE_LAB_INTERFACE")
    monkeypatch.setattr(counters, "interface_bytes", lambda: {"lo": 1, "eth0": 2})
    with pytest.raises(LabError, match=r"this process has none; .*gradwire lab run"):
        bytes_sent()


def test_bytes_sent_counts_the_loopback(monkeypatch):
    monkeypatch.setenv("GRADWIRE_LAB_INTERFACE", "lo")
    assert bytes_sent() >= 0


def test_missing_tool_names_the_package():
    with pytest.raises(LabError, match=r"'gw-no-such-tool' was not found\. Install the package"):
        find_tool("gw-no-such-tool")


def test_without_iproute2_namespaces_are_not_blamed(monkeypatch):
    monkeypatch.setattr(network, "which", lambda tool: "/sbin/ip" if tool == "ip" else None)
    found = available.__wrapped__()
    assert (found.mode, found.cure) == ("none", "Install the package iproute2.")
    assert found.reason.endswith("tc not found")
    said = str(refused(found, "loopback=True"))
    assert "Install the package iproute2. Or use loopback=True" in said
    assert "sysctl" not in said


def test_an_interpreter_that_cannot_be_started(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        pytest.raises(LabError, match=r"start '.*python' once more; .*No such file.*\. Use a Py"),
        Cluster(2, "1gbit", loopback=True),
    ):
        pass


@pytest.mark.skipif(available().mode == "none", reason=available().reason)
def test_more_hosts_than_files_may_be_open():
    """The guard opens two for each; it inherits the limit."""
    asked = 'ulimit -n 20; exec "$0" -m gradwire lab run --hosts 8 -- true'
    done = subprocess.run(
        ["sh", "-c", asked, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Too many open files. Use fewer hosts, or allow more files by ulimit" in done.stderr


@pytest.mark.parametrize(("hosts", "procs"), [(1, 1), (2, 2)])
def test_probe_needs_two_hosts_of_one_process(hosts, procs):
    with pytest.raises(LabError, match="at least 2 hosts with 1 process each"):
        probe(Cluster(hosts, "1gbit", procs_per_host=procs, loopback=True))


def test_the_lab_does_not_load_torch():
    program = (
        "import sys, gradwire.lab, gradwire.lab.probe, gradwire.lab.guard, gradwire.cli.lab;"
        "sys.exit('torch' in sys.modules)"
    )
    environment = with_package_on_path({})
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


def test_rates_of_other_kinds_are_numbers():
    assert parse_rate(10**6) == 10**6


def test_every_rate_is_read_before_the_first_is_measured(monkeypatch, capsys):
    monkeypatch.setattr("gradwire.lab.probe.probe", lambda *_: pytest.fail("it measures"))
    assert main(["lab", "probe", "--loopback", "--rate", "1gbit", "fast"]) == 2
    assert "got 'fast'" in capsys.readouterr().err


def test_the_seconds_of_a_command_are_without_the_building(monkeypatch, capsys):
    clock = iter(range(100))

    def enters(own):
        next(clock)  # it takes a second
        return own

    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(Cluster, "__enter__", enters)
    monkeypatch.setattr(Cluster, "run", lambda *_, **__: next(clock) * 0)
    assert main(["lab", "run", "--loopback", "--json", "--quiet", "--", "true"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == 2
