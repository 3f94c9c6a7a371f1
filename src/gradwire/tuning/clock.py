"""The clock of measurements."""

from __future__ import annotations

from time import perf_counter

import torch


def now(device: torch.device) -> float:
    """Seconds, once all that a device was given to do is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
