"""Process groups for every lane, and the texts that ranks exchange when a model is attached."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from gradwire.errors import PeerError, PlanError
from gradwire.groups import Group, Machines
from gradwire.plan import Plan
from gradwire.runtime.host_copies import CPU
from gradwire.runtime.silent_ranks import silent_ranks
from gradwire.runtime.torch_dist import all_gather, backend_of

# Public since torch 2.15.
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
_FAILURES = count()
"""Numbers of failed attempts to attach: reports of an earlier one are still in the store."""
_OWN = 1 << 32  # torch's own count does not come so far


@contextmanager
def attaching(group: dist.ProcessGroup) -> Iterator[None]:
    """A context for network calls of `attach` and `adopt` among a group: a failure raises
    PeerError, as a rank is missing."""
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        under = f"gradwire/not attached/{next(_FAILURES)}"
        call = "attach(), adopt() or backward()"  # in a backward "auto" adopts plans
        silent = silent_ranks(group, "attach()", under=under, call=call)
        raise PeerError(
            "all ranks must attach, and change plans, together, within the timeout; "
            f"{silent} Look at that rank's own log. (The backend says: "
            f"{str(error).splitlines()[0]})"
        ) from error


def make_group(
    parent: dist.ProcessGroup | None, timeout_seconds: float, device: torch.device = CPU,
    ranks: Sequence[int] | None = None, by_host: bool = False, alone: bool = False,
) -> dist.ProcessGroup:  # fmt: skip
    """Makes a group for one lane with the parent's backend and ranks, or with those in `ranks`.
    Collective: all ranks of the parent must call.

    alone: ranks that are not in the group do not call, and have counted alike. by_host: the group
    also carries tensors in host memory, by Gloo if the parent does not.
    """
    parent = parent if parent is not None else dist.group.WORLD
    assert parent is not None
    everybody, backend = dist.get_process_group_ranks(parent), str(dist.get_backend(parent))
    if by_host and not backend_of(parent, CPU):
        backend = f"cpu:gloo,{device.type}:{backend_of(parent, device)}"
    own = range(len(everybody)) if ranks is None else ranks
    calling = len(own) if alone else len(everybody)
    if calling < dist.get_world_size() and not alone:
        count_alike(parent, timeout_seconds)
    make = dist.new_group if calling == dist.get_world_size() else _new_group_of_callers
    with attaching(parent):
        group: dist.ProcessGroup = make(
            [everybody[r] for r in own], timeout=timedelta(seconds=timeout_seconds),
            backend=backend,
        )  # fmt: skip
        if dist.get_rank(parent) in own:
            wait_for_all(group, device)
    return group


def count_alike(group: dist.ProcessGroup, timeout_seconds: float) -> None:
    """Makes groups of this rank alone until all ranks of a group are in equally many. Collective.

    torch names a group of some of the world's ranks by the number of groups that each of them is
    in. Numbers differ after an attach to other groups: one may have failed, or have more lanes.
    """
    made = dist.distributed_c10d._world.pg_names
    most = max(map(int, stored_texts(str(len(made)), group, timeout_seconds)))
    for _ in range(most - len(made)):
        _new_group_of_callers([dist.get_rank()], backend="gloo")


def _new_group_of_callers(ranks: Sequence[int], **options: Any) -> Any:
    """Makes a group that not all of the world's ranks make, named by the groups that this rank is
    in.

    From 2.15 on torch names it by the groups that this rank has made, and counts it among those,
    which also number the groups of all ranks: their names would differ for good.
    """
    world = dist.distributed_c10d._world
    count = world.group_count
    world.group_count = _OWN + len(world.pg_names)
    try:
        return dist.new_group(list(ranks), use_local_synchronization=True, **options)
    finally:
        world.group_count = count


def stored_texts(text: str, group: dist.ProcessGroup, timeout_seconds: float) -> list[str]:
    """Returns every rank's text, in rank order, by way of the group's store: unlike the group's
    own collectives it waits no longer than this timeout. Collective."""
    turns = f"gradwire/texts/{group.rank()}"
    with attaching(group):
        store = dist.distributed_c10d._get_process_group_store(group)
        turn = store.add(turns, 0)
        keys = [f"gradwire/texts/{turn}/of {rank}" for rank in range(group.size())]
        store.set(keys[group.rank()], text)
        store.wait(keys, timedelta(seconds=timeout_seconds))
        texts = [store.get(key).decode() for key in keys]
        store.add(turns, 1)  # a call that fails does not count
    return texts


def make_parts(
    parent: dist.ProcessGroup, machines: Machines | None, timeout_seconds: float,
    device: torch.device = CPU,
) -> dict[Group, dist.ProcessGroup]:  # fmt: skip
    """Makes this rank's groups inside and across machines, for one lane. Collective.

    Every rank makes every group, in one order, also those it is not in. There are none if machines
    are not known, or have one rank each.
    """
    rank, made = dist.get_rank(parent), dict[Group, dist.ProcessGroup]()
    if machines is None or machines.per_node == 1:
        return made
    for group in machines.groups():
        part = make_group(parent, timeout_seconds, device, group.ranks)
        if rank in group.ranks:
            made[group] = part
    return made


def wait_for_all(group: Any, device: torch.device = CPU) -> None:
    """Waits until every rank has connected to all others of a new group. Collective.

    Otherwise a rank that is done might close the group, after a failed attach for example, while
    others still connect to it, and they would fail because of it. NCCL connects in the first
    collective, in which all ranks must take part; in a step, some may have nothing to send.
    """
    if group.name() == "gloo":
        group.barrier().wait()
    elif device.type == "cuda":
        for carried in (CPU, device):
            if backend_of(group, carried):
                dist.all_reduce(torch.zeros(1, device=carried, dtype=torch.float32), group=group)


def set_timeout(seconds: float, group: dist.ProcessGroup | None = None) -> None:
    """Sets the timeout of a group's later collectives, by default the default group's."""
    _set_timeout(timedelta(seconds=seconds), group)


def find_machines(
    plan: Plan, group: dist.ProcessGroup, device: torch.device, wanted: bool = False
) -> Machines | None:
    """Returns which ranks share a machine, or None if the plan does not need it; the same on every
    rank, and so are errors. Collective.

    wanted: also if the plan does not need it, where machines have equally many ranks.
    """
    asked = {s.collective.per_node for s in plan.strategies} - {None}
    if len(asked) > 1:
        raise PlanError(
            "all strategies of a plan must have one number of ranks per machine; these have "
            f"per_node={' and '.join(map(str, sorted(n or 0 for n in asked)))}. Leave out "
            "per_node everywhere."
        )
    if per_node := next(iter(asked), None):
        return Machines.even(dist.get_world_size(group), per_node)
    names = exchange_text(machine_name(), group, device) if asked or wanted else []
    is_even = len(set(Counter(names).values())) == 1
    return Machines.named(names) if asked or is_even else None


def machine_name() -> str:
    """Returns a name that is equal on all ranks of a machine: its host name, and torchrun's number
    for it."""
    return f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}".strip()


def differing(text: str, group: dist.ProcessGroup, device: torch.device) -> dict[int, str]:
    """Returns the texts that differ from this rank's, by rank; empty if all agree. Only what is
    returned is cut: long texts are compared whole. Collective."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    said = exchange_text(f"{digest} {text}", group, device)
    own = said[dist.get_rank(group)]
    return {rank: other.split(" ", 1)[1] for rank, other in enumerate(said) if other != own}


def exchange_text(text: str, group: dist.ProcessGroup, device: torch.device) -> list[str]:
    """Returns every rank's text, in rank order, cut at 1,000 bytes of UTF-8. Collective."""
    room = 1000
    data = text.encode()[:room].ljust(room, b"\0")
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    theirs = mine.new_empty(dist.get_world_size(group) * room)
    with attaching(group):
        all_gather(theirs, mine, group=group)
    rows = bytes(theirs.cpu().tolist())
    texts = (rows[i : i + room] for i in range(0, len(rows), room))
    return [row.rstrip(b"\0").decode(errors="ignore") for row in texts]
