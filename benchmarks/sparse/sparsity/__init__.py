"""Sparse gradients: synthetic ones, their measures, and the bytes that an exchange has to move.

    tensors = synthetic("nmt", workers=8, scale=1/64)    dense tensors with a known sparsity
    measure(tensors)                                     density, overlap, densification, skew, …
    reference_bytes(tensors)                             what no exchange can go far below
    volumes(expected("nmt"), 128)                        bytes per scheme, by closed formulas
    times(expected("nmt"), 128, 125e6, 1e-4)             seconds per scheme

Definitions and formulas are those of ZEN (Wang et al., OSDI'25, sections 2 and 3). Importing this
package loads torch.
"""

from sparsity.measures import (
    Imbalances,
    imbalances,
    measure,
    measured,
    reference_bytes,
)
from sparsity.presets import PRESETS, expected, synthetic
from sparsity.volumes import SCHEMES, WAITS, Sparsity, times, volumes

__all__ = [
    "PRESETS",
    "SCHEMES",
    "WAITS",
    "Imbalances",
    "Sparsity",
    "expected",
    "imbalances",
    "measure",
    "measured",
    "reference_bytes",
    "synthetic",
    "times",
    "volumes",
]
