"""The benchmark runs and reports what it says; no time is asserted."""

import argparse
import json

import pytest
import torch

from gradwire.bench import kernels
from gradwire.bench.machine import ALLOCATOR
from gradwire.cli import bench_kernels
from gradwire.errors import KernelError
from gradwire.kernels import instruction_set, use

native = pytest.mark.skipif(instruction_set() == "twin", reason="needs the native extension")


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_kernels.add_arguments(parser)
    return parser.parse_args(["--elements", "20000", "--repeats", "2", *given])


@pytest.fixture
def _allocator_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALLOCATOR.items():
        monkeypatch.setenv(name, value)


@native
def test_every_contestant_has_a_row() -> None:
    rows = {row.kernel: row for row in bench_kernels.measure(elements=20_000, repeats=2)}
    assert rows["stream update"].fraction_of_memory_limit == 1.0
    for row in rows.values():
        assert 0 < row.seconds_least <= row.seconds <= row.seconds_most
        assert row.bytes_per_second == pytest.approx(row.bytes / row.seconds)
        for rival, ratio in row.times_faster_than_torch.items():
            assert ratio == pytest.approx(rows[rival].seconds / row.seconds)


@native
def test_it_tells_how_far_it_is_by_what_turns_take() -> None:
    told: list[tuple[str, float, float, str]] = []

    def progress(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        told.append((stage, done, of, now))

    rows = bench_kernels.measure(elements=20_000, repeats=2, progress=progress)
    stages = list(dict.fromkeys(stage for stage, *_ in told))
    assert stages == ["drawing gradients", "first turns", "kernels"]
    assert {now for *_, now in told} == {"", *(row.kernel for row in rows)}
    assert all(0 < done <= of * (1 + 1e-9) for stage, done, of, _ in told if stage == "kernels")
    assert told[-1][1] == pytest.approx(told[-1][2])


@native
@pytest.mark.usefixtures("_allocator_is_set")
def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.run(options("--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["elements"] == 20000
    assert {"update_topk", "topk", "stream update"} <= {r["kernel"] for r in document["rows"]}


@native
@pytest.mark.usefixtures("_allocator_is_set")
def test_a_table_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.run(options()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| kernel | ms, median | ms, range | GB/s |")


def test_a_gpu_s_limit_is_a_copy() -> None:
    """All that runs on a GPU, here with tensors of the CPU, whose room and clock differ."""
    contestants = kernels._contestants(2_000, "cpu", kernels._copies)
    for turn in range(2):
        for contestant in contestants:
            contestant.take_turn(turn, kernels._host_seconds)
    rows = {row.kernel: row for row in kernels._rows(contestants)}
    assert {"copy", "topk", "update_topk", "adam, one bit", "cast to bf16"} <= set(rows)
    for row in rows.values():
        limit = rows["copy"].bytes_per_second
        assert row.fraction_of_memory_limit == pytest.approx(row.bytes_per_second / limit)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(KernelError, match="torch sees no CUDA device; see `gradwire doctor`"):
        bench_kernels.run(options("--device", "cuda"))


@pytest.mark.usefixtures("_allocator_is_set")
def test_without_native_kernels_it_says_so() -> None:
    with use("twin"), pytest.raises(KernelError, match="install"):
        bench_kernels.run(options())


def test_the_allocator_is_set_by_starting_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("os.execve", lambda *call: started.append(call) or exit(0))
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        bench_kernels.run(options())
    assert started[0][2].items() >= ALLOCATOR.items()
