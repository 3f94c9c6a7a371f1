"""Ray Train: `model, handle = prepare_model(model, plan)` in the loop of each worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

import gradwire
from gradwire.training.integrations import needing

with needing("Ray Train", __name__, "'ray[train]'"):
    from ray.train import torch as ray_torch


def prepare_model(
    model: nn.Module, plan: str | gradwire.Strategy | gradwire.Plan | Path = "auto",
    prepare: Mapping[str, Any] | None = None, **options: Any,
) -> tuple[nn.Module, gradwire.Handle]:  # fmt: skip
    """Call `ray.train.torch.prepare_model`, and attach the model it returns. Collective.

    A single worker gets no DistributedDataParallel from Ray; its model is attached as it is, so
    that one plan means the same training with any number of workers.

    Args:
        model: as in Ray's `prepare_model`.
        plan, options: as in `gradwire.attach`.
        prepare: keyword arguments of Ray's `prepare_model`.

    Returns:
        The model to train, and its handle. Save residuals into a checkpoint's folder with `save`
        of `gradwire.training.integrations`, on every worker: Ray joins the workers' folders.

    Raises:
        As `gradwire.attach`.
    """
    prepared = ray_torch.prepare_model(model, **(prepare or {}))
    return prepared, gradwire.attach(prepared, plan, **options)
