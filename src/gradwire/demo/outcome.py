"""What is kept of a demo: a JSON document and the plot of loss against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from gradwire import kernels
from gradwire.demo.runner import Ran
from gradwire.demo.summary import Summary
from gradwire.lab import Cluster, available
from gradwire.lab.rates import format_rate
from gradwire.report import loss_plot


def document(summary: Summary, cluster: Cluster, seconds: float) -> dict[str, object]:
    """Plain values for `json.dumps`; `seconds` is how long the whole demo took."""
    return {
        "hosts": cluster.hosts,
        "bits_per_second": None if cluster.loopback else cluster.bits_per_second,
        "mode": "loopback" if cluster.loopback else available().mode,
        "torch": torch.__version__,
        "kernels": kernels.instruction_set(),
        "seconds": round(seconds, 1),
        **asdict(summary),
    }


def save_plot(
    ran: Sequence[Ran], summary: Summary, cluster: Cluster, folder: Path, name: str = "loss"
) -> Path:
    """Draw every row's held-out loss over its seconds of training; return the file's path."""
    lines = [
        loss_plot.Line(
            each.row.label,
            [(point.seconds, point.loss) for point in each.measured.curve],
            reference=not each.row.trains_together,
        )
        for each in ran
    ]
    millions = summary.parameters / 1e6
    title = f"LSTM language model, {millions:.1f} M parameters, {network(cluster)}"
    return loss_plot.save(lines, title, summary.target_loss, folder, name)


def network(cluster: Cluster) -> str:
    """The cluster in a few words."""
    if cluster.loopback:
        return f"{cluster.hosts} ranks on loopback"
    return f"{cluster.hosts} hosts, {format_rate(cluster.bits_per_second)}/s"
