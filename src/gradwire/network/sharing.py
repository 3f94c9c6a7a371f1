"""Jobs that share a fabric, from a file: the traffic, the hosts and the start of each.

[[job]]
traffic = "all_to_all"
bytes = 8_000_000
ranks = 8                     # on the next hosts that are free, in the order they are given in

[[job]]
traffic = "ring"
hosts = [8, 9, 12, 13]        # rank r on the r-th of these
start_seconds = 0.001
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.document import TOML, Document
from gradwire.errors import NetworkError
from gradwire.network.demand import in_groups, pattern_of
from gradwire.network.flows import Flows
from gradwire.network.placement import Placement
from gradwire.schema import List, Number, Table, Text, Whole

_LATEST_SECONDS = 1e5


@dataclass(frozen=True)
class Job:
    """A job of the file. traffic: a pattern; bytes: those of the collective; ranks: how many, or
    hosts: which ones; groups_of: the size of groups that communicate alone, by default all ranks;
    start_seconds: when the first step begins. Raises NetworkError for neither ranks nor hosts, and
    for both."""

    traffic: str = "ring"
    bytes: int = 25_000_000
    ranks: int | None = None
    hosts: Sequence[int] = ()
    groups_of: int | None = None
    start_seconds: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if (self.ranks is None) == (not self.hosts):
            got = "both" if self.hosts else "neither"
            raise NetworkError(
                f"a job needs either ranks or hosts; got {got}. Write for example ranks = 8."
            )


_JOB = Table(
    {},
    {
        "traffic": Text(), "bytes": Whole(1, 10**15), "ranks": Whole(1, 1 << 24),
        "hosts": List(Whole(0, 1 << 24), 1), "groups_of": Whole(1, 1 << 24),
        "start_seconds": Number(0, _LATEST_SECONDS), "name": Text(),
    },
    make=Job, by_hand=True,
)  # fmt: skip
JOBS = Document(
    "a file of jobs", Table({"job": List(_JOB, 1)}, by_hand=True), NetworkError,
    'Write for each: [[job]], traffic = "ring", ranks = 8', syntax=TOML,
)  # fmt: skip


class Placed(NamedTuple):
    """The flows of a job between hosts, which begin start_seconds after the simulation does."""

    name: str
    flows: Flows
    start_seconds: float


def jobs_of(file: str) -> list[Job]:
    """Reads a file. Raises NetworkError if that fails, and for unknown or invalid fields."""
    found: list[Job] = JOBS.load(file)["job"]
    return found


def placed(jobs: Sequence[Job], order: Sequence[int]) -> list[Placed]:
    """Places jobs on hosts. order: all hosts; jobs without hosts of their own get the next free
    ones in it. Raises NetworkError for hosts that are unknown, taken, or too few."""
    named = [host for job in jobs for host in job.hosts]
    taken, known = set(named), set(order)
    for host in named:
        if host not in known or named.count(host) > 1:
            raise NetworkError(
                f"each host of a job must be one of 0 to {len(order) - 1}, and of one job; got "
                f"{host}{' twice' if host in known else ''}. Name others."
            )
    free = [host for host in order if host not in taken]
    found = []
    for number, job in enumerate(jobs):
        asked = job.ranks or 0
        if asked > len(free):
            raise NetworkError(
                f"every rank needs a host of its own; job {number} needs {asked}, and {len(free)} "
                "are left. Use a larger topology, or fewer ranks."
            )
        hosts = job.hosts or free[:asked]
        free = free[asked:]
        found.append(Placed(job.name or f"job{number}", _flows(job, hosts), job.start_seconds))
    return found


def _flows(job: Job, hosts: Sequence[int]) -> Flows:
    each = job.groups_of or len(hosts)
    ranked = in_groups(pattern_of(job.traffic), len(hosts), each, -(-job.bytes // each) * each)
    flows = Placement(tuple(hosts)).placed(ranked)
    is_first = flows.step == flows.step.min(initial=0)
    start = np.where(is_first, round(job.start_seconds * 1e9), 0)
    return Flows(flows.src, flows.dst, flows.bytes, flows.step, flows.start_ns + start)
