"""Several jobs on one fabric: each is routed for itself, and all run at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flow, Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.route import refuse_disconnected, route
from gradwire.network.routing.scheme import Scheme, Share

Jobs: TypeAlias = Routes | Sequence[Routes]
"""The routes of one job, or of each: the steps of a job follow each other, whatever others do."""


def routed(
    jobs: Sequence[Flows], topology: Fabric, scheme: str | Scheme, seed: int = 0
) -> list[Routes]:
    """Routes each job as if it were alone: no plan knows of the others. Their hashes differ.
    Raises NetworkError as `route` does."""
    return [route(flows, topology, scheme, seed + number) for number, flows in enumerate(jobs)]


class Together(NamedTuple):
    """Several jobs as one. routes: those of all jobs, one after the other, with steps that are
    numbered on. job: the job of each flow; offset: the index of each job's first piece, then the
    number of pieces."""

    routes: Routes
    job: Ints
    offset: Ints


def together(jobs: Jobs) -> Together:
    """Joins jobs. Raises NetworkError for no job, for jobs on different topologies, for routes
    that are no routes of theirs, and for hosts between which no path works."""
    given = (jobs,) if isinstance(jobs, Routes) else tuple(jobs)
    if not given:
        raise NetworkError("at least one job must run; got none. Pass the routes of one.")
    given = tuple(own.checked() for own in given)
    for own in given:
        refuse_disconnected(own.fabric, own.flows)
    for other in given[1:]:
        if not other.fabric.is_like(given[0].fabric):
            raise NetworkError(
                "all jobs must share one topology; got routes on different ones. Route all on the "
                "same."
            )
    many = [len(own.flows) for own in given]
    offset = np.cumsum([0, *(len(own.flow) for own in given)])
    job = np.repeat(np.arange(len(given)), many)
    if len(given) == 1:
        return Together(given[0], job, offset)
    first = np.cumsum([0, *many])
    columns = {name: np.concatenate([getattr(own.flows, name) for own in given])
               for name in Flow._fields}  # fmt: skip
    begin = 0
    for own, start, end in zip(given, first, first[1:]):
        columns["step"][start:end] += begin
        begin += int(own.flows.step.max(initial=-1)) + 1
    flow, path, amount, unit = Share.joined([
        Share(own.flow + start, own.path, own.amount, own.unit) for own, start in zip(given, first)
    ])  # fmt: skip
    return Together(
        Routes(given[0].fabric, Flows(**columns), flow, path, amount, unit), job, offset
    )
