"""Goes on with the ranks that are left when one is lost, and takes up those that come back.

    an exchange fails ──► close lanes ──► who is left? ──► new group ──► attach again
                                          (the store)                        │
    next step, of all ◄── residuals × ranks now / before ◄── rank 0's weights and optimizer

The step in which a rank is lost is dropped on all: no gradient is left in `.grad`, so that the
optimizer changes nothing. What was on its way then, and what the lost rank had not sent, is lost.
A residual v of a rank that is left counts as before: v / before = (v · now / before) / now.
"""

from __future__ import annotations

import ctypes
import gc
import json
import traceback
import warnings
import weakref
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from time import monotonic
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from gradwire.agreement import plain
from gradwire.errors import GradwireError, PeerError, PlanError, UsageError
from gradwire.local import MEAN, MOMENTS, NOISE
from gradwire.moves import AllGather, Broadcast
from gradwire.plan import Plan
from gradwire.runtime.process_groups import attaching, set_timeout
from gradwire.runtime.roster import CONNECT_SECONDS, Roster, joined
from gradwire.training.attach import Handle
from gradwire.training.copies import Hook
from gradwire.training.elastic import regroup, shared_of
from gradwire.training.same_weights import bits_of
from gradwire.training.session import Session
from gradwire.training.state import load, state_of
from gradwire.training.trainable import training_as_attached

LOOK_EVERY = 10
"""Exchanges from one look for ranks that ask to join to the next; each is a broadcast of
MOST_AT_ONCE numbers."""

MOST_AT_ONCE = 8
"""Ranks that are taken up at once."""

ATTEMPTS = 5
"""More ranks may be lost while those that are left meet; after so many attempts it is an error."""

BEGUN = (*MOMENTS, NOISE)
"""What a rank that comes gets of rank 0's own state: moments, and if they are an average's."""

_ROSTER: Roster | None = None
"""That of this process, from its first `attach` with on_failure="shrink", or earlier from
`init_process_group`."""

_WATCHED: weakref.ref[Handle] | None = None
"""The handle that goes on with the ranks that are left."""


def init_process_group(backend: str = "gloo", *, timeout_seconds: float = 1800.0) -> None:
    """Makes torch's default process group, as `torch.distributed.init_process_group` does from the
    environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); a rank that is started again joins
    those that go on without it. Collective, or, for such a rank, until it is taken up.

    Only jobs that are attached with on_failure="shrink" take ranks up. The store at MASTER_ADDR
    must outlive all ranks: rank 0 hosts it, unless TORCHELASTIC_USE_AGENT_STORE=True says that
    another process does.

    backend: torch's name of it; on_failure="shrink" needs "gloo". timeout_seconds: how long to
    wait for the other ranks, now and in the group's collectives.

    Raises:
        UsageError: there is a default process group already.
        PeerError: the ranks that train did not take this one up within the timeout.
    """
    if dist.is_initialized():
        raise UsageError(
            "a process can have one default process group; this one has it already. Call "
            "gradwire.init_process_group() instead of torch's, and once."
        )
    limit = timedelta(seconds=timeout_seconds)
    store, rank, world = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
    init_by(store, rank, world, backend, timeout_seconds)


def init_by(store: Any, rank: int, world: int, backend: str, timeout_seconds: float) -> None:
    """Makes the default process group as `init_process_group` does, by a store that outlives all
    ranks. rank: this process's number when the job began; world: the number of ranks then."""
    global _ROSTER
    deadline = monotonic() + timeout_seconds
    while True:
        _ROSTER = joined(store, rank, world, deadline - monotonic())
        patience = CONNECT_SECONDS if _ROSTER.epoch else timeout_seconds
        try:
            _ROSTER.make_group(backend, timedelta(seconds=patience))
        except (RuntimeError, ConnectionError):
            if not _ROSTER.epoch:
                raise
        else:  # otherwise one of those that took this process up was lost then: it asks again
            set_timeout(timeout_seconds)
            return


def attach_for_survivors(module: nn.Module, attach_here: Callable[[], Handle]) -> Handle:
    """Attaches a module, by attach_here; its handle goes on when ranks are lost. Collective.

    Raises:
        PeerError: another process was lost meanwhile.
    """
    global _ROSTER, _WATCHED
    if _ROSTER is not None and not _ROSTER.is_of_default_group:
        _ROSTER.close()
        _ROSTER = None
    if _ROSTER is None:
        store = dist.distributed_c10d._get_default_store()
        store = getattr(store, "underlying_store", store)
        _ROSTER = joined(store, dist.get_rank(), dist.get_world_size(), 60.0)
    if _ROSTER.is_joining:
        with attaching(dist.distributed_c10d._get_default_group()):
            _wait_for_all()
    handle = attach_here()
    made = Survivors(handle, module, attach_here, _ROSTER)
    _WATCHED = weakref.ref(handle)
    if _ROSTER.is_joining:
        try:
            made.catch_up(None)
        except BaseException:
            handle.detach()  # the others notice by their connections
            raise
    takes_part = weakref.WeakMethod(made.takes_part)
    _ROSTER.watch(lambda: bool((asked := takes_part()) and asked()))
    return handle


def _wait_for_all() -> None:
    """Waits until all processes attach: one that has come may still make its model. Collective.

    A loss is noticed by its connection here; the store, by which groups are made, would not tell.
    """
    dist.barrier()


def check_survivors(
    on_failure: str, module: nn.Module, group: Any, optimizer: Any, scaler: Any
) -> None:
    """Raises UsageError unless on_failure is "raise", or "shrink" and the job can go on without
    some of its ranks."""
    if on_failure == "raise":
        return
    if on_failure != "shrink":
        raise UsageError(f"on_failure must be 'raise' or 'shrink'; got {on_failure!r}. Pass one.")
    wrong = {
        "a plain module": type(module).__name__ == "DistributedDataParallel"
        or hasattr(module, "set_requires_gradient_sync"),
        "the default process group": group is not None,
        "optimizer=, the optimizer itself": not isinstance(optimizer, Optimizer),
        "an optimizer with all of its state on each rank": hasattr(optimizer, "optim"),
        "values in its groups that torch.load(weights_only=True) reads": not _travels(optimizer),
        "no GradScaler that is enabled": scaler is not None and scaler.is_enabled(),
        "a default process group, of init_process_group()": not dist.is_initialized(),
        "the backend gloo": dist.is_initialized() and dist.get_backend() != "gloo",
        "no other model that is attached so": _watched_is_attached(),
    }
    missing = [what for what, is_wrong in wrong.items() if is_wrong]
    if missing:
        raise UsageError(
            f'on_failure="shrink" needs {", ".join(missing)}. Attach so, or leave on_failure out '
            "and restart from a checkpoint."
        )


def _travels(optimizer: Any) -> bool:
    """Whether a rank that comes could read what the optimizer's groups hold."""
    room, groups = BytesIO(), getattr(optimizer, "param_groups", [])
    with suppress(Exception):
        torch.save([{k: plain(x) for k, x in g.items() if k != "params"} for g in groups], room)
        torch.load(BytesIO(room.getvalue()), weights_only=True)
        return True
    return False


def _watched_is_attached() -> bool:
    handle = _WATCHED() if _WATCHED is not None else None
    return handle is not None and handle.attached


@dataclass(frozen=True)
class Before:
    """What a rank brings along from the last epoch. is_tuning: whether plan="auto" looked for
    plans. parted: the parameters of which ranks of a machine keep a part each."""

    state: Mapping[str, Any]
    plan: Plan
    is_tuning: bool
    parted: Collection[str]


class Survivors:
    """Watches over one handle."""

    def __init__(
        self, handle: Handle, module: nn.Module, attach_here: Callable[[], Handle], roster: Roster
    ) -> None:
        self._handle, self._module, self._attach_here = handle, module, attach_here
        self._roster, self._steps, self._is_meeting = roster, 0, False
        told = handle._session.settings.optimizer
        assert isinstance(told, Optimizer)
        self._optimizer = told
        stepped = weakref.WeakMethod(self._stepped)  # the handle keeps this object, nothing else
        hook = told.register_step_post_hook(Hook(lambda *_: (own := stepped()) and own()))
        weakref.finalize(self, hook.remove)
        self._follow()

    def takes_part(self) -> bool:
        """Whether this process exchanges, or is on its way to; not once the user has detached."""
        return self._is_meeting or self._handle.attached

    def _stepped(self) -> None:
        self._steps += 1

    def _follow(self) -> None:
        """Hear of this session's failures, and look for newcomers after its exchanges."""
        session = self._handle._session
        session.on_lost, compare = self._recover, session.compare
        for performer in session.performers:
            performer.patience_seconds = 0.0  # the roster finds out who is lost

        def look() -> None:
            if compare is not None:
                compare()
            self._look()

        session.compare = look

    # -- ranks that are lost ---------------------------------------------------------------

    def _recover(self, error: PeerError) -> None:
        with self._meeting():
            before = self._before()
            _let_go(error)
            gc.collect()  # errors of other lanes, and residuals and rooms of this session
            self._go_on(before)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """A context in which this process is detached, and takes part all the same."""
        self._is_meeting = True
        try:
            yield
        finally:
            self._is_meeting = False

    def _go_on(self, before: Before) -> None:
        """Go on with the ranks that are left."""
        timeout, known = self._handle._session.settings.timeout_seconds, self._roster.processes
        for _ in range(ATTEMPTS):
            self._roster.without_lost(self._steps, timeout)
            if self._goes_on(before):
                lost = [p for p in known if p not in self._roster.processes]
                none = "an exchange failed, as where a connection breaks, and no process was lost"
                self._tell(", ".join(f"process {p} was lost" for p in lost) or none)
                return
        raise PeerError(
            f"ranks that are left must be able to connect; after {ATTEMPTS} attempts they cannot. "
            "Restart all from a checkpoint."
        )

    def _before(self) -> Before:
        """Closes what exchanged until now. Returns what it remembered."""
        session = self._handle._session
        parted = {name for name in session.parameters if not session.ledger.is_own(name)}
        before = Before(state_of(session), session.whole_plan, self._handle.is_tuning, parted)
        self._handle.detach()  # the others notice by their connections
        return before

    def _goes_on(self, before: Before, came: str = "") -> bool:
        """Attach again among the processes of the roster; False if another one was lost
        meanwhile, or those that came, which are named, do not fit."""
        try:
            self._roster.make_group("gloo", timedelta(seconds=CONNECT_SECONDS))
            set_timeout(self._handle._session.settings.timeout_seconds)
            _wait_for_all()
            with training_as_attached(self._module, self._handle._session.parameters):
                self._handle._become(self._attach_here())
            self._follow()
            self.catch_up(before)
        except BaseException as error:
            self._handle.detach()  # the others notice, even if this process stays
            if _is_own(error):
                if not (came and isinstance(error, GradwireError)):
                    raise
                warnings.warn(f"{came} cannot join: {error}", stacklevel=2)
            _let_go(error)
            return False
        for parameter in self._handle._session.parameters.values():
            parameter.grad = None
        return True

    def _tell(self, what: str) -> None:
        if dist.get_rank() == 0:
            world, step = dist.get_world_size(), self._handle._session.step
            many = f"{world} ranks go on, from step {step}, numbered from 0 to {world - 1} anew"
            alone = f"one rank goes on, from step {step}, as rank 0"
            warnings.warn(f"{what}; {many if world > 1 else alone}.", stacklevel=2)

    # -- ranks that come -------------------------------------------------------------------

    def _look(self) -> None:
        """Take up the processes that rank 0 has seen asking. Collective."""
        session = self._handle._session
        if session.step % LOOK_EVERY:
            return
        first = session.performers[0]
        asking = self._roster.asking()[:MOST_AT_ONCE] if first.rank == 0 else []
        told = torch.full((MOST_AT_ONCE,), -1, dtype=torch.int64, device="cpu")
        told[: len(asking)] = torch.tensor(asking, dtype=torch.int64)
        found = [p for p in session.moved(Broadcast(told, 0, first.rank)).tolist() if p >= 0]
        if not found:
            return
        with self._meeting():
            before = self._before()
            gc.collect()
            self._roster.with_asking(found)
            if self._goes_on(before, came=" and ".join(f"process {p}" for p in found)):
                self._tell(", ".join(f"process {p} has come" for p in found))
            else:
                self._go_on(before)

    def catch_up(self, before: Before | None) -> None:
        """Take over what all ranks share from rank 0, and keep this rank's residuals. Collective.

        before: of this rank among the processes of the last epoch; None if it has come.
        """
        session = self._handle._session
        self._take_plan(before)
        own_state = before.state if before else None
        memory = _Memory(self._optimizer, own_state, before.parted if before else ())
        own = [memory.digest(), self._steps, own_state["step"] if own_state else 0, memory.taken]
        rows = session.moved(AllGather(torch.tensor(own, dtype=torch.int64))).tolist()
        if any(row[0] != rows[0][0] for row in rows):
            arrived = _sent_by_first(session, memory.packed)
            if rows[session.rank][0] != rows[0][0]:
                memory.take(arrived)
        self._steps = rows[0][1]
        entry = memory.entry(session)
        if entry is not None:
            told = {"taken": rows[0][3], "step": max(row[2] for row in rows)}
            load(session, {**state_of(session), **entry, **told}, strict=False)
        if self._handle._same is not None:
            self._handle._same.look_soon()

    def _take_plan(self, before: Before | None) -> None:
        """Adopt rank 0's plan of the last epoch, which may not be the one that was attached.
        Collective."""

        def told() -> bytes:
            assert before is not None, "rank 0 is one of those that are left"
            return json.dumps([before.is_tuning, before.plan.to_json()]).encode()

        is_tuning, text = json.loads(_sent_by_first(self._handle._session, told))
        plan, now = Plan.from_json(text), self._handle._session.whole_plan
        if (plan.digest(), is_tuning) == (now.digest(), self._handle.is_tuning):
            return
        if not is_tuning:
            self._handle.adopt(plan)
            return
        with suppress(PlanError):  # on all ranks, where machines have other numbers of ranks now
            Handle.adopt(self._handle, plan)  # the tuner goes on from there


class _Memory:
    """What one process brings along: its optimizer, and its own state of the last epoch. One that
    has come gets rank 0's moments of its own gradients, and nothing that waits. Of parameters of
    which ranks of a machine keep a part each (parted), it gets none: its part is another."""

    def __init__(
        self, optimizer: Optimizer, before: Mapping[str, Any] | None, parted: Collection[str] = ()
    ) -> None:
        self._optimizer, self._before, self._parted = optimizer, before, parted
        self._told = tree_map(plain, optimizer.state_dict())
        self._own: Mapping[str, Any] | None = None
        self._shared, self._plan, self.taken = dict[str, dict[str, Tensor]](), {}, 0
        if before is not None:
            (self._own,) = before["ranks"].values()
            self._plan, self.taken = before["plan"], before["taken"]
            keys = shared_of(self._plan)
            self._shared = self._of_own(lambda name: set(keys[name]) - {MEAN})
            self._moments = self._of_own(lambda name: () if name in parted else BEGUN)
            self._rates = self._own.get("rates", {})

    def _of_own(self, keys: Callable[[str], Container[str]]) -> dict[str, dict[str, Tensor]]:
        """Returns this rank's state of these keys, by parameter name."""
        state: Mapping[str, Mapping[str, Tensor]] = self._own["state"] if self._own else {}
        return {
            name: {key: x for key, x in values.items() if key in keys(name)}
            for name, values in state.items()
        }

    def digest(self) -> int:
        """Returns a number that is equal on all ranks whose shared state is; -1 for newcomers."""
        if self._before is None:
            return -1
        leaves = tree_leaves([self._told, self._shared])
        numbers = [x for x in leaves if isinstance(x, bool | int | float | str)]  # as rates
        tensors = sum(int(bits_of(x)) for x in leaves if isinstance(x, Tensor))
        return (tensors + crc32(repr(numbers).encode())) & (1 << 62) - 1

    def _made(self) -> str:
        """Returns the optimizer's class, and how many parameters each of its groups has."""
        groups = ", ".join(str(len(group["params"])) for group in self._optimizer.param_groups)
        return f"{type(self._optimizer).__name__} of {groups} parameters"

    def packed(self) -> bytes:
        """Returns what all ranks share, for others to `take`."""
        room = BytesIO()
        told = {
            "plan": dict(self._plan), "shared": self._shared, "moments": self._moments,
            "rates": self._rates, "optimizer": self._told, "made": self._made(),
        }  # fmt: skip
        torch.save(told, room)
        return room.getvalue()

    def take(self, data: bytes) -> None:
        """Take over what another rank has packed."""
        told = torch.load(BytesIO(data), weights_only=True)
        if told["made"] != (own := self._made()):
            raise UsageError(
                "a rank that is started again must make the optimizer that the others have, "
                f"{told['made']}; got {own}. Start it by the same script and options."
            )
        self._optimizer.load_state_dict(told["optimizer"])
        self._plan, self._shared = told["plan"], told["shared"]
        if self._own is None:
            self._moments, self._rates = told["moments"], told["rates"]

    def entry(self, session: Session) -> dict[str, Any] | None:
        """Returns this rank's state among the ranks of the session; None if no rank has any."""
        if not self._plan:
            return None
        before, world, sizes = self._before, session.world, session.ledger.sizes
        found: Any = state_of(session)["ranks"]
        ((name, now),) = found.items()
        if before is None or self._own is None:
            first = {"state": self._moments, "rates": self._rates, "part": now["part"]}
            own = regroup({0: first}, self._plan, sizes, 1, 1)
        else:
            rank, count = session_rank(before), before["world"]
            own = regroup({rank: self._own}, self._plan, sizes, count, world, world / count)
            if list(own["part"]) != now["part"] and own["part"][1] == now["part"][1]:
                own["part"] = now["part"]  # ranks of a machine have changed places
                own["state"] = {n: x for n, x in own["state"].items() if n not in self._parted}
        for parameter, values in self._shared.items():
            own["state"].setdefault(parameter, {}).update(values)
        own["tensors"] = sum(map(len, own["state"].values())) + len(own["leftovers"])
        return {"plan": self._plan, "ranks": {name: own}}


def _let_go(error: BaseException | None) -> None:
    """Drops what an error's frames hold: moves under way, which keep connections open, by which
    other ranks wait for this one."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _is_own(error: BaseException) -> bool:
    """Whether the error is this rank's own, and not another's that is lost: torch makes groups."""
    others = PeerError if isinstance(error, GradwireError) else (RuntimeError, ConnectionError)
    return not isinstance(error, others)


def session_rank(state: Mapping[str, Any]) -> int:
    """Returns the rank whose state it is."""
    (name,) = state["ranks"]
    return int(name.split()[0])


def _sent_by_first(session: Session, make: Callable[[], bytes]) -> bytes:
    """Returns the bytes that rank 0 makes. Collective."""
    data = make() if session.rank == 0 else b""
    size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
    size = session.moved(Broadcast(size, 0, session.rank)).clone()
    room = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    if data:
        room.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    arrived = session.moved(Broadcast(room, 0, session.rank))
    return ctypes.string_at(arrived.data_ptr(), arrived.numel())
