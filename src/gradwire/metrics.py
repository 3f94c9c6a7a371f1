"""A step's metrics by name, and receivers of them for a recording: `gradwire.record(…, to=…)`.

    to=WeightsAndBiases(wandb.run)    to=partial(mlflow.log_metrics, run_id=run.info.run_id)
    to=TensorBoard(SummaryWriter())   to=OpenMetrics("/var/lib/node_exporter/gradwire.prom")

A receiver is any function of numbers by name and a step; none of these packages is imported here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.document import save_file
from gradwire.errors import UsageError
from gradwire.run_folder import StepRow

_AXIS = "gradwire/step"


def named(row: StepRow) -> dict[str, float]:
    """Returns the numbers of a row by name, as `handle.stats()` does, and step_seconds; skipped is
    the number of its steps that were not finite. Leaves out residual_norm if the row has none."""
    seconds = ("compute", "backward", "encode", "wire", "decode")
    found = {f"{name}_seconds": getattr(row, name) for name in seconds}
    busy = row.encode + row.wire + row.decode
    found |= {
        "step_seconds": row.seconds, "exposed_seconds": row.wait, "bytes_sent": row.bytes_sent,
        "bytes_across": row.bytes_across, "bytes_given": row.bytes_given,
        "overlap": max(0.0, 1.0 - row.wait / busy) if busy else 0.0,
        "skipped": float(row.skipped),
    }  # fmt: skip
    if row.residual_norm is not None:
        found["residual_norm"] = row.residual_norm
    return found


class TensorBoard:
    """Passes metrics to a `torch.utils.tensorboard.SummaryWriter`, or any with `add_scalar`.

    Raises:
        UsageError: the writer has no such method.
    """

    def __init__(self, writer: Any) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise UsageError(
                "a TensorBoard writer must have the method add_scalar(name, value, step); got "
                f"{type(writer).__name__}. Pass torch.utils.tensorboard.SummaryWriter()."
            )
        self._writer = writer

    def __call__(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)


class WeightsAndBiases:
    """Passes metrics to a run of Weights & Biases: they become columns of the next row that the
    job logs, over an axis of their own, "gradwire/step". If several come before that row, the last
    ones are kept.

    `wandb.log` itself would not do: it takes rows by ascending steps only. Where a job counts
    otherwise than the recording, by epochs or several rows to a step, one of the two would be left
    out.

    Args:
        run: what `wandb.init` returned.
        commit: whether metrics make rows of their own, for a job that logs nothing else.
    """

    def __init__(self, run: Any, *, commit: bool = False) -> None:
        if not all(callable(getattr(run, name, None)) for name in ("define_metric", "log")):
            raise UsageError(
                "a run of Weights & Biases must have the methods define_metric and log; got "
                f"{type(run).__name__}. Pass what wandb.init() returned."
            )
        self._run, self._commit = run, commit
        run.define_metric(_AXIS)
        run.define_metric("gradwire/*", step_metric=_AXIS)

    def __call__(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, _AXIS: step}, commit=self._commit)


class OpenMetrics:
    """Writes a text file in the OpenMetrics format, as Prometheus' node exporter collects it
    (`--collector.textfile.directory`): gauges of the last row; each row replaces the file.

    Args:
        path: the file. Each rank needs its own; the node exporter reads those that end in .prom.
        labels: the labels of every gauge, as {"rank": "3", "job": "gpt"}.

    Raises:
        UsageError: the file's folder is missing, or a label's name has other characters than
            letters, digits and _.
    """

    def __init__(self, path: str | Path, labels: Mapping[str, str] | None = None) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise UsageError(
                f"the folder of the metrics file must exist; '{self._path.parent}' is not a "
                "folder. Create it, or pass another path."
            )
        for name in labels or ():
            if not re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII):
                raise UsageError(
                    "a label's name must be of letters, digits and _, and not begin with a digit; "
                    f'got {name!r}. Pass for example labels={{"rank": "3"}}.'
                )
        pairs = (f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
        inside = ",".join(pairs)
        self._labels = f"{{{inside}}}" if inside else ""

    def __call__(self, numbers: Mapping[str, float], step: int) -> None:
        lines = []
        for name, value in {**numbers, _AXIS: float(step)}.items():
            gauge = re.sub(r"\W", "_", name, flags=re.ASCII)
            lines += [f"# TYPE {gauge} gauge", f"{gauge}{self._labels} {_shown(value)}"]
        save_file(self._path, "\n".join([*lines, "# EOF", ""]))


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _shown(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.9g}"
