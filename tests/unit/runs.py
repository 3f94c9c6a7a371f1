"""Writes run folders for tests, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradwire.run_folder import FORMAT, RankFile

ABOUT = {
    "format": FORMAT, "step": 0, "world": 1, "start": 1, "host": "h", "pid": 1,
    "unix_seconds": 0.0,
    "clock_seconds": 0.0, "ahead_seconds": 0.0, "ahead_error_seconds": 0.0,
    "facts": {"backend": "gloo", "device": "cpu"},
}  # fmt: skip
PLAN = {
    "format": 1, "lanes": 1, "buckets": [{
        "strategy": "bf16 | allreduce",
        "parameters": [{"name": "w", "shape": [5, 4], "dtype": "float32"}]}],
}  # fmt: skip


def about(**values: Any) -> dict[str, Any]:
    return {**ABOUT, **values}


def step(n: int, **values: Any) -> dict[str, Any]:
    kinds = ("compute", "backward", "wait", "encode", "wire", "decode")
    row = dict.fromkeys(kinds, 0.01) | {"seconds": 0.03, "most_seconds": 0.04}
    sizes = {"bytes_sent": 10, "bytes_across": 10, "bytes_given": 100}
    return {"step": n, "steps": 1, "at": 0.1 * n, **row, **sizes, **values}


def spans(n: int, start: int = 0) -> dict[str, Any]:
    rows = [[0, 0, 0, start, 500, 40, "world"]]
    return {"step": n, "kinds": ["wire"], "labels": ["bucket 0"], "spans": rows}


def write(folder: Path, rank: int, *lines: tuple[str, dict[str, Any]]) -> Path:
    file = RankFile(folder, rank)
    for kind, values in lines:
        file.add(kind, **values)
    file.close()
    return file.path
