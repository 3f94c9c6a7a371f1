"""The benchmark runs, and counts bytes as one would by hand; no time is asserted."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from gradwire import families
from gradwire.bench import compressors as bench
from gradwire.bench.machine import ALLOCATOR
from gradwire.bench.traffic import decode_bytes, encode_bytes
from gradwire.cli import bench_compressors as command
from gradwire.compressors import Int8, OneBit, Sign, TernGrad, TopK
from gradwire.errors import KernelError, StrategyError
from gradwire.kernels import instruction_set, use
from gradwire.strategy import Compressor

native = pytest.mark.skipif(instruction_set() == "twin", reason="needs the native extension")
N = 25_600


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["--elements", str(N), "--repeats", "2", "--payloads", "2", *given])


@pytest.fixture
def _allocator_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALLOCATOR.items():
        monkeypatch.setenv(name, value)


# -- what is measured --------------------------------------------------------------------------


def test_every_exported_compressor_has_a_row() -> None:
    """If this fails: give the new member `examples` with its parameters."""
    assert {s.compressor.name for s in bench.strategies()} == set(families.COMPRESSORS)


def test_a_member_is_measured_as_its_examples_are_written() -> None:
    texts = [str(s) for s in bench.strategies() if s.compressor.name == "int8"]
    assert texts == ["int8 | allgather", "int8+ef | allgather"]


@dataclass(frozen=True)
class Foreign(Int8):
    """A member of another package, with a parameter that has no default."""

    level: int
    name: ClassVar[str] = "foreign"
    examples: ClassVar[tuple[str, ...]] = ()


def test_a_member_that_needs_parameters_is_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(families.COMPRESSORS._others, "foreign", Foreign)
    every = {s.compressor.name for s in bench.strategies()}
    assert every == set(families.COMPRESSORS) - {"foreign"}
    (line,) = capsys.readouterr().err.splitlines()
    assert "'foreign' is left out" in line
    assert "'foreign(level)'" in line
    assert bench.strategies(["foreign(3)"])[0].compressor == Foreign(3)


def test_texts_choose_the_rows() -> None:
    chosen = bench.strategies(["topk(0.1)+ef", "none | allreduce"])
    assert [str(s) for s in chosen] == ["topk(0.1)+ef | allgather", "none | allreduce"]


def test_a_compressor_is_decoded_once_whatever_its_feedback() -> None:
    chosen = bench.strategies(["topk(0.1)", "topk(0.1)+ef", "dgc(0.1)", "topk(0.2)"])
    assert bench.distinct_compressors(chosen) == [TopK(0.1), TopK(0.2)]


# -- what must move, by hand -------------------------------------------------------------------

SCALES = 4 * 100  # of 25,600 elements in blocks of 256
PLAIN = TopK(0.01, index="int32")
CODED = 4 * 256 + 6 * 256 // 8 + 82  # Elias-Fano: 6 low bits each, and 256 + 399 bits


@pytest.mark.parametrize(
    ("compressor", "state", "expected"),
    [
        (Int8(), 0, [4 * N + N + SCALES]),
        (Int8(), N, [4 * N + 8 * N + N + SCALES]),
        (PLAIN, 0, [4 * N + 8 * 256]),
        (PLAIN, 2 * N, [4 * N + 16 * N + 8 * 256]),
        (TopK(0.01), 0, [4 * N + CODED]),
        (TopK(0.01, values="bf16"), 0, [4 * N + CODED - 2 * 256]),
        (Sign(), N, [12 * N + N // 8]),
        (Sign(scaled=True), 0, [4 * N + N // 8 + 4]),
        (Sign(scaled=True), N, [12 * N + N // 8 + 4, 20 * N + N // 8 + 4]),
        (OneBit(), 0, [4 * N + N // 8 + 8]),
        (OneBit(), N, [12 * N + N // 8 + 8, 20 * N + N // 8 + 8]),
        (TernGrad(), 0, [4 * N + N // 5 + 4, 8 * N + N // 5 + 4]),
        (TernGrad(), N, [12 * N + N // 5 + 4, 20 * N + N // 5 + 4]),
    ],
    ids=str,
)
def test_bytes_of_encoding(compressor: Compressor, state: int, expected: list[int]) -> None:
    assert encode_bytes(compressor, N, state) == expected


def test_bytes_of_decoding() -> None:
    assert decode_bytes(Int8(), N, 8) == [4 * N + 8 * (N + SCALES)]
    assert decode_bytes(PLAIN, N, 8) == [4 * N + 8 * 8 * 256]
    assert decode_bytes(TopK(0.01), N, 8) == [4 * N + 8 * CODED]


# -- a tiny run --------------------------------------------------------------------------------


@native
def test_rows_agree_with_themselves() -> None:
    found = bench.measure(elements=N, repeats=2, payloads=3)
    assert {row["name"] for row in found["encode"]} >= {"int8+ef", "dgc(0.001)", "onebit"}
    assert len(found["decode"]) == len(bench.distinct_compressors(bench.strategies()))
    for row in found["encode"] + found["decode"]:
        assert 0 < row["seconds_least"] <= row["seconds"] <= row["seconds_most"]
        assert row["turns"] == 2
        for moved, limit, ratio in zip(row["bytes"], row["limits_seconds"], row["times_limit"]):
            assert limit == pytest.approx(moved / found["copy_bytes_per_second"])
            assert ratio == pytest.approx(row["seconds"] / limit)
        judged = row["target"] is not None
        assert row["met"] == (row["times_limit"][-1] <= row["target"] if judged else None)
    json.dumps(found, allow_nan=False)


@native
def test_state_is_counted_as_training_keeps_it() -> None:
    listed = "(0.01, index='int32')"
    found = bench.measure(["none", "int8+ef", f"dgc{listed}", f"topk{listed}"], N, 1, 2)
    none, int8, dgc, topk = found["encode"]
    assert none["bytes"] == [8 * N]
    assert int8["bytes"] == [12 * N + N + SCALES]
    assert dgc["bytes"] == [20 * N + 8 * 256]
    assert topk["bits_per_kept"] == 64
    assert topk["bits_per_element"] == pytest.approx(0.64)
    assert none["bits_per_kept"] is None


@native
@pytest.mark.usefixtures("_allocator_is_set")
def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(options("--json", "int8", "topk(0.01)+ef")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["elements"] == N
    assert [row["name"] for row in document["encode"]] == ["int8", "topk(0.01)+ef"]


@native
@pytest.mark.usefixtures("_allocator_is_set")
def test_tables_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(options("terngrad", "topk(0.01)+ef")) == 0
    said = capsys.readouterr()
    assert "copy" in said.out.splitlines()[0]
    assert "decode and sum 2" in said.out
    assert "4.20 / 8.20" in said.out


@native
@pytest.mark.usefixtures("_allocator_is_set")
def test_a_wrong_text_is_an_error() -> None:
    with pytest.raises(StrategyError, match="Use 'topk'"):
        command.run(options("topkk(0.01)"))


@pytest.mark.usefixtures("_allocator_is_set")
def test_without_native_kernels_it_says_so() -> None:
    with use("twin"), pytest.raises(KernelError, match="install"):
        command.run(options())
