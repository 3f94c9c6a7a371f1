"""Metrics in Weights & Biases itself, offline: the rows of the file that it would send. It needs
`pip install wandb`, where it is to run."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.metrics import WeightsAndBiases

wandb = pytest.importorskip("wandb", reason="wandb is not installed")


def records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a LevelDB log, whose blocks have 32 KiB and records a head of seven
    bytes: a sum, the length, and whether it is whole, or the first, a middle or the last part."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        if len(part) < length:  # it is being written
            return
        whole = part if kind in (1, 2) else whole + part
        at += 7 + length
        if kind in (1, 4):
            yield whole


def rows(folder: Path) -> list[dict[str, float]]:
    """Returns the rows of the run in this folder, without W&B's own columns, once another process
    has written all of them."""
    from wandb.proto import wandb_internal_pb2 as proto

    (file,) = folder.rglob("*.wandb")
    found: list[dict[str, float]] = []
    for _ in range(600):
        kinds, found = set(), []
        for data in records(file.read_bytes()):
            record = proto.Record()
            record.ParseFromString(data)
            kinds.add(record.WhichOneof("record_type"))
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if items:
                numbers = {k: json.loads(v) for k, v in items.items() if not k.startswith("_")}
                found.append(numbers)
        if "exit" in kinds:
            break
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("counts", ["rows", "epochs"])
def test_neither_the_job_s_rows_nor_ours_are_left_out(tmp_path: Path, counts: str) -> None:
    """A job may log several rows to a step, or count its epochs."""
    run = wandb.init(mode="offline", dir=str(tmp_path))
    to = WeightsAndBiases(run)
    for step in range(4):
        to({"gradwire/step_seconds": 0.5 + step}, step)
        if counts == "rows":
            run.log({"loss": float(step)})
            run.log({"accuracy": float(step)})
        elif step % 2:
            run.log({"loss": float(step)}, step=step // 2)
    to({"gradwire/step_seconds": 9.0}, 4)
    run.finish()
    found = rows(tmp_path)
    ours = [(row["gradwire/step"], row.get("loss")) for row in found if "gradwire/step" in row]
    if counts == "rows":
        assert ours == [*((step, float(step)) for step in range(4)), (4, None)]
        assert [row["accuracy"] for row in found if "accuracy" in row] == [0.0, 1.0, 2.0, 3.0]
    else:
        assert ours == [(3, 1.0), (4, 3.0)], "a row is open until the next step's begins"
    assert found[-1]["gradwire/step_seconds"] == 9.0, "what was last is there, too"
