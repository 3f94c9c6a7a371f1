"""A parallel job as a TOML file: the fields of `Parallelism`, by their names.

dp = 32
pp = 4
tp = 8
gradient_bytes = 437_500_000
activation_bytes = 8_388_608
microbatches = 16
forward_seconds = 0.012
backward_seconds = 0.024
buckets = 4                   # if not 1
"""

from __future__ import annotations

from gradwire.network.parallelism import JOB, Parallelism


def job(text: str) -> Parallelism:
    """NetworkError for what cannot be read, is missing, unknown, or cannot be."""
    return Parallelism(**JOB.read(text))
