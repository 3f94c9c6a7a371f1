"""Names the ranks that have not reported a failure, for the errors of those that have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

import torch.distributed as dist

from gradwire.groups import Group
from gradwire.runtime.threads import in_thread

PATIENCE_SECONDS = 3.0
"""A rank that has failed waits so long for the reports of the others: they notice one by one."""

STORE_SECONDS = 5.0
"""The store must answer after so long beyond that. Calls of a store whose host is stuck or cut off
block for as long as the store was told to wait, minutes by default."""

T = TypeVar("T")


def silent_ranks(
    group: dist.ProcessGroup, label: str, part: Group | None = None, silent: Sequence[int] = (),
    patience_seconds: float = PATIENCE_SECONDS, under: str = "gradwire/failed",
    call: str = "backward()",
) -> str:  # fmt: skip
    """Returns a sentence that names the ranks that did not report a failure; not collective.

    Every rank that sees a failure reports it in the group's store; a rank that does not is dead or
    stuck. If the store itself does not answer, so is the process that hosts it.
    label: what failed here; ranks that report something else are named, with that.
    part: the ranks that moved, if not all did: they are checked first.
    silent: those among them whose messages did not come, or were not taken. under: the key of the
    reports in the store. call: what a rank may have left out.
    """

    def ask() -> str:
        store = dist.distributed_c10d._get_process_group_store(group)
        return _asked(store, group, label, part, silent, patience_seconds, under, call)

    try:
        return of_store(ask, patience_seconds + STORE_SECONDS)
    except TimeoutError:
        return (
            "the rank that hosts the rendezvous store (rank 0 under torchrun) is stuck, or the "
            "network to it is cut."
        )
    except MemoryError as error:
        return f"rank {dist.get_rank()}, this one, cannot ask which ranks failed: {error}"
    except Exception:
        return "the rank that hosts the rendezvous store (rank 0 under torchrun) is gone."


def of_store(ask: Callable[[], T], seconds: float) -> T:
    """Returns what `ask`, which calls a store, returns, and raises what it raises; TimeoutError if
    it takes longer than so many seconds."""
    return in_thread(ask, "gradwire-store").result(timeout=seconds)


def _asked(
    store: Any, group: dist.ProcessGroup, label: str, part: Group | None, silent: Sequence[int],
    patience_seconds: float, under: str, call: str,
) -> str:  # fmt: skip
    rank, everybody = dist.get_rank(group), range(dist.get_world_size(group))
    names = dist.get_process_group_ranks(group)
    others = [r for r in everybody if r != rank]
    is_last = not _missing(store, under, others, 0.0)
    store.set(f"{under}/{rank}", label)
    moved = part.ranks if part else everybody
    missing = _missing(store, under, moved, patience_seconds)
    missing = missing or _missing(store, under, everybody, 0.0)
    alive = [r for r in everybody if r not in missing]
    elsewhere = _elsewhere(store, under, alive, label, names)
    if missing:
        return (
            f"{_told(missing, names)} died or is stuck, or calls {call} less often than "
            f"others{elsewhere}."
        )
    if is_last and others:
        return (
            f"{_told(others, names)} gave up before this one, rank {names[rank]}, which came late "
            f"or lost its connections{elsewhere}."
        )
    late = [moved[r] for r in silent] or others
    return (
        f"every rank is alive, but {_told(late, names)} did not answer in time{elsewhere}; the "
        "network between them may be cut."
    )


def _told(ranks: Sequence[int], names: Sequence[int]) -> str:
    """Names ranks of a group by their numbers in the default group, as logs do."""
    return f"rank {', '.join(str(names[r]) for r in ranks)}"


def _elsewhere(
    store: Any, under: str, ranks: Sequence[int], label: str, names: Sequence[int]
) -> str:
    """Names those of the ranks where something else failed, and what."""
    told = {r: store.get(f"{under}/{r}").decode() for r in ranks}
    return "".join(
        f"; rank {names[r]} failed in {where}" for r, where in told.items() if where != label
    )


def _missing(store: Any, under: str, ranks: Sequence[int], patience_seconds: float) -> list[int]:
    """Returns the ranks that report no failure in time. It polls, as waiting with a timeout fails
    differently in every store."""
    deadline = monotonic() + patience_seconds
    missing = list(ranks)
    while True:
        missing = [r for r in missing if not store.check([f"{under}/{r}"])]
        if not missing or monotonic() > deadline:
            return missing
        sleep(0.05)
