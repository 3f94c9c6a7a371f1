"""A cluster by hand: possible numbers, files, and errors for impossible ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import PlanError
from gradwire.topology import Cluster

FULL = Cluster(16, 8, 10e9, 5e-5, 2e9, 1e-5, 4.0)


def test_ranks_are_counted_host_by_host() -> None:
    own = Cluster(2, 3)
    assert own.world == 6
    assert own.host_names == ("host0",) * 3 + ("host1",) * 3


@pytest.mark.parametrize("cluster", [Cluster(1), FULL, Cluster(4, cross_bits_per_second=1e8)])
def test_files_are_read_back(cluster: Cluster, tmp_path: Path) -> None:
    assert Cluster.from_toml(cluster.to_toml()) == cluster
    cluster.save(tmp_path / "c.toml")
    assert Cluster.load(tmp_path / "c.toml") == cluster


def test_a_file_needs_little() -> None:
    text = "format = 1\nhosts = 4\n[cross]\nbits_per_second = 1_000_000_000\n"
    assert Cluster.from_toml(text) == Cluster(4, cross_bits_per_second=1e9)


def test_other_rates_and_workers() -> None:
    assert FULL.with_rate(1e9).cross_bits_per_second == 1e9
    assert FULL.with_workers(64).hosts == 8
    for wrong in (0, 12):
        with pytest.raises(PlanError, match="must fill hosts of"):
            FULL.with_workers(wrong)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"hosts": 0}, "hosts must be a whole number, 1 to 1048576; got 0"),
        ({"hosts": 2.5}, "whole number"),
        ({"hosts": True}, "whole number"),
        ({"ranks_per_host": -1}, "ranks_per_host"),
        (
            {"cross_bits_per_second": 0},
            r"cross_bits_per_second must be a finite number, 1 to 1e\+18; got 0",
        ),
        ({"cross_bits_per_second": -1e9}, "1 to 1e"),
        ({"cross_bits_per_second": float("inf")}, "finite"),
        ({"cross_bits_per_second": "1gbit"}, "got '1gbit'"),
        ({"node_bytes_per_second": 0.0}, "node_bytes_per_second"),
        ({"cross_latency_seconds": -1e-3}, "0 to 1e"),
        ({"node_latency_seconds": float("nan")}, "node_latency_seconds"),
        ({"processors_per_rank": 0.5}, "1 to 1e"),
    ],
)
def test_what_cannot_be(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        Cluster(**{"hosts": 2, **wrong})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hosts = ", "TOML"),
        ("hosts = 4", "format 1 in this version of gradwire; got None"),
        ("format = 2\nhosts = 4", "format 1 in this version of gradwire; got 2"),
        ("format = 1\nhosts = 4", "got no 'cross'"),
        ("format = 1\nhost = 4\n[cross]\nbits_per_second = 1e9", "got 'host'"),
        ("format = 1\nhosts = 4\n[cross]\nbandwidth = 1e9", "cross may have only bits_per_second"),
        ("format = 1\nhosts = 4\ncross = 3", "cross must be a table"),
        (
            "format = 1\nhosts = 4\n[cross]\nbits_per_second = -1.0",
            r"cross\.bits_per_second must be a finite number, 1 to",
        ),
    ],
)
def test_files_that_are_none(text: str, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        Cluster.from_toml(text)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="readable file"):
        Cluster.load(tmp_path / "none.toml")


def test_it_needs_no_torch() -> None:
    code = "import sys, gradwire.topology; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
