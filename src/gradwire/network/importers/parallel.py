"""A step by its text, and a parallel job as a TOML file: the fields of `Parallelism`, by name.

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

from gradwire.errors import NetworkError
from gradwire.families import STEPS
from gradwire.network.built import called
from gradwire.network.importers import read
from gradwire.network.parallelism import JOB, Parallelism, workload_of
from gradwire.network.workload import Workload
from gradwire.notation import Notation

NOTATION = Notation(
    "step", "a plan (.json), a parallel job (.toml), or a reader with its file",
    "parallel('job.toml')", NetworkError, elsewhere={"./contrib/formats": ("chakra",)},
)  # fmt: skip


def job(text: str) -> Parallelism:
    """NetworkError for what cannot be read, is missing, unknown, or cannot be."""
    return Parallelism(**JOB.read(text))


def parallel(file: str) -> Workload:
    """A step of the parallel job in a file. NetworkError as of `job`, and for what is no file."""
    return workload_of(job(read(file)))


BASE, MEMBERS = Workload, (parallel,)


def step_of(text: str) -> Workload:
    """Read a step by a reader: `parallel`, or another package's. NetworkError if it is none."""
    found: Workload = called(NOTATION, STEPS, text)
    return found
