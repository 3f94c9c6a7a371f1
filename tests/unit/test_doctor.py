"""gradwire doctor: plain words and a verdict; missing parts are reported without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.cli import doctor, main

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from gradwire.cli.main import main
sys.exit(main(["doctor", *sys.argv[1:]]))
"""


def facts(**network: Any) -> doctor.Facts:
    return {
        "machine": {"python": "3.11.7", "system": "Linux x86_64", "cores": 2,
                    "interfaces": ["lo", "eth0"], "chosen interface": "the backend's choice"},
        "torch": {"version": "2.13.0", "backends": ["gloo"], "cuda devices": 0,
                  "intra-op threads": 1, "advice": "none"},
        "kernels": {"instruction set": "avx2", "native": True, "advice": "none"},
        "lab": {"namespaces": "none", "reason": "rootless: not allowed"},
    } | ({"network": network} if network else {})  # fmt: skip


FOUR = {"backend": "gloo", "ranks": 4, "hosts": 2, "all-reduce latency_seconds": 0.00052,
        "all-reduce bits_per_second": 1.5e9, "advice": "none"}  # fmt: skip


def shown(found: doctor.Facts) -> str:
    return doctor.text({**found, "verdict": doctor.verdict(found)})


def test_the_verdict_is_what_gradients_cost() -> None:
    """By hand: 2 · 3/4 · 100 M · 32 bits at 1.5 Gbit/s are 3.2 s."""
    found = doctor.verdict(facts(**FOUR))
    assert found["ready"]
    assert found["fp32_seconds"] == pytest.approx(3.2)
    assert "fp32 gradients of 100 M parameters cost 3.2 s a step here" in found["says"]


@pytest.mark.parametrize(
    ("network", "says"),
    [({}, "the network was not measured"), (FOUR | {"ranks": 1}, "one rank alone exchanges no")],
)
def test_without_a_network_it_says_how_to_measure_one(network: Any, says: str) -> None:
    found = doctor.verdict(facts(**network))
    assert found["fp32_seconds"] is None
    assert says in found["says"]
    assert found["next"] == "torchrun --nproc-per-node 2 -m gradwire doctor"


def test_the_text_is_words_not_names() -> None:
    text = shown(facts(**FOUR))
    for line in (
        "  ranks: 4, on hosts: 2, by gloo", "  the sum of one number takes 520 µs",
        "  large sums run at 1.5 Gbit/s from each rank",
        "  cannot be made here: rootless: not allowed",
        "  compiled; what they use of this processor: avx2",
    ):  # fmt: skip
        assert f"{line}\n" in text
    assert text.splitlines()[-1] == "    gradwire profile -- torchrun … train.py"
    assert "_" not in text.replace("GLOO_SOCKET_IFNAME", "").replace("x86_64", "")
    assert max(map(len, text.splitlines())) < 100


def test_large_rates_are_written_out() -> None:
    text = shown(facts(**FOUR | {"all-reduce bits_per_second": 3.6e12}))
    assert "large sums run at 3,600 Gbit/s" in text


@pytest.mark.parametrize(
    ("name", "value"), [("MASTER_PORT", "abc"), ("WORLD_SIZE", "0"), ("MASTER_ADDR", "")]
)
def test_variables_by_which_nobody_meets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    usual = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for own, text in {**usual, name: value}.items():
        monkeypatch.setenv(own, text)
    monkeypatch.setattr("gradwire.cli.doctor._lab", dict)
    threads = torch.get_num_threads()
    try:
        assert main.main(["doctor", "--quiet"]) == 2
    finally:
        torch.set_num_threads(threads)
    assert f"{name}={value}" in capsys.readouterr().err


def test_advice_is_shown_where_there_is_some() -> None:
    found = facts()
    found["torch"]["advice"] = doctor._thread_advice(4)
    found["kernels"] = {"instruction set": "twin", "native": False, "advice": "build them"}
    text = shown(found)
    assert "set OMP_NUM_THREADS=1" in text
    assert "compiled ones\n  build them\n" in text


@pytest.mark.parametrize(
    ("latency_seconds", "setting", "told"),
    [(0.24, "1\n", True), (0.24, "0\n", False), (0.0005, "1\n", False), (0.24, "", False)],
)
def test_far_connections_that_begin_slowly_are_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, latency_seconds: float, setting: str,
    told: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(doctor, "SLOW_START", tmp_path / "setting")
    if setting:
        (tmp_path / "setting").write_text(setting)
    text = shown(facts(**FOUR | {"advice": doctor._far_advice(latency_seconds)}))
    assert ("  sysctl -w net.ipv4.tcp_slow_start_after_idle=0 keeps" in text) == told
    assert max(map(len, text.splitlines())) < 100


GPU = {"device": "A100", "capability": "8.0", "gigabytes": 42.1}


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({"kernels": "triton", "tried": 144, "wrong": 0, "advice": "none"},
         ["  kernels in Triton: 144 of 144 cases right, to the bit"]),
        ({"kernels": "triton", "tried": 144, "wrong": 1, "advice": "report this"},
         ["  kernels in Triton: 143 of 144 cases right, to the bit", "  report this"]),
        ({"kernels": "torch", "advice": "Triton cannot be imported"},
         ["  by torch's operations, slower than kernels of its own",
          "  Triton cannot be imported"]),
    ],
)  # fmt: skip
def test_a_gpu_is_told_of(more: dict[str, Any], lines: list[str]) -> None:
    text = shown({**facts(), "cuda": GPU | more}).splitlines()
    at = text.index("the GPU")
    assert text[at + 1 : at + 2 + len(lines)] == ["  A100, capability 8.0, 42.1 GB", *lines]
    assert "the GPU" not in shown({**facts(), "cuda": {"device": "none", "advice": "none"}})


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.21, "3.2 s"), (45.6, "46 s"), (0.0123, "12 ms"), (2e-6, "2.0 µs")]
)
def test_durations(seconds: float, words: str) -> None:
    assert doctor.duration(seconds) == words


@pytest.mark.parametrize("as_json", [False, True])
def test_without_torch_it_says_so_and_how_to_install_it(as_json: bool) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "--quiet", *["--json"] * as_json]
    job = subprocess.run(command, capture_output=True, text=True, check=False)
    assert job.returncode == 1
    assert job.stderr == ""
    assert "torch is missing" in job.stdout
    assert "pip install" in job.stdout
    if as_json:
        assert json.loads(job.stdout)["verdict"]["ready"] is False


@pytest.mark.parametrize("megabytes", ["0", "-1", "nan", "inf"])
def test_what_cannot_be_measured_with_is_refused(
    megabytes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["doctor", "--megabytes", megabytes]) == 2
    assert "must be from 0.001 to 100,000" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_what_a_scheduler_sets_must_be_a_number(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "first")
    assert main.main(["doctor"]) == 2
    assert (
        f"{name} must be a whole number, as torchrun sets it; got 'first'"
        in capsys.readouterr().err
    )


def test_a_rank_beyond_the_last_does_not_wait_for_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda _: pytest.fail("waits"))
    assert main.main(["doctor"]) == 2
    assert "RANK must be below WORLD_SIZE; got 2 of 2. Set both" in capsys.readouterr().err


@pytest.mark.parametrize("job", [{}, {"RANK": "0", "WORLD_SIZE": "2"}], ids=["alone", "no_master"])
def test_here(
    job: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some schedulers set a rank, and not where the ranks meet."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert main.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["machine", "torch", "kernels", "cuda", "lab", "verdict"]
    assert "gradwire works here" in shown(found)
