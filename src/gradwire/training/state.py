"""A session's state as a dictionary for torch.save, and how it is loaded.

    {"format", "world", "step", "taken", "seed", "loss_scale",
     "plan": {strategy: names}, "aim": the same, "warmup": [steps, density, …],
     "ranks": {"3": {"part", "tensors", "state": {name: {key: tensor}}, "leftovers",
                     "rates": {rate: names}, "gradient_norm"}}}

taken: the number of steps that were not skipped. plan: the plan in force at the last step; aim:
the plan after the warm-up. tensors: the number of tensors that were saved.

Each rank saves its own entry of "ranks"; so several ranks' dictionaries can be written into one
checkpoint, and several may be loaded if the number of ranks has changed (`elastic`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire import beside
from gradwire.buckets import Bucket
from gradwire.dynamics import PLAIN, Dynamics
from gradwire.errors import PlanError
from gradwire.local import OF_OTHER_SHAPE, RIGHT_FACTOR, THRESHOLD, is_waiting
from gradwire.plan import Plan
from gradwire.runtime.ledger import Ledger
from gradwire.strategy import Strategy
from gradwire.training.documents import FORMAT, STATE
from gradwire.training.elastic import by_rate, rates_of, regroup, sources
from gradwire.training.session import Session

Strict = Literal[True, False, "alike"]
"""Strategies that a state may be loaded with: those it was saved with; any; those of the same
dynamics."""
Names = Mapping[str, Sequence[str]]
"""Names of parameters, by the text of their strategy."""
COMMON = ("world", "step", "taken", "seed", "loss_scale", "plan", "aim", "warmup")
"""Keys whose values are the same in all ranks' states."""


def state_of(session: Session) -> dict[str, object]:
    """Returns this rank's state, in the shapes listed in `Handle.state_dict`; "leftovers" are
    residuals of a former plan."""
    ledger = session.ledger
    state = {
        name: {
            key: value if key in OF_OTHER_SHAPE else value.view(ledger.shapes[name])
            for key, value in values.items()
        }
        for name, values in ledger.memory.items()
    }
    head = _head(session, _by_strategy(ledger.plan), _by_strategy(session.whole_plan))
    return {**head, **_own(session, state, ledger.leftovers)}


def poured_state_of(session: Session) -> dict[str, object]:
    """Returns this rank's state for any plan that can be adopted next: all residuals are
    "leftovers", in the parameters' sizes, which are added to the next gradients."""
    return {**_head(session, {}, {}), **_own(session, {}, session.ledger.waiting())}


def _by_strategy(plan: Plan) -> Names:
    found: dict[str, list[str]] = {}
    for bucket, strategy in zip(plan.buckets, plan.strategies):
        found.setdefault(str(strategy), []).extend(bucket.names)
    return found


def _head(session: Session, plan: Names, aim: Names) -> dict[str, object]:
    return {
        "format": FORMAT, "world": session.world, "step": session.step,
        "taken": session.taken, "seed": session.settings.seed, "loss_scale": session.loss_scale,
        "plan": dict(plan), "aim": dict(aim), "warmup": _warmup(session),
    }  # fmt: skip


def _warmup(session: Session) -> list[float | str]:
    """Returns the warm-up's steps and densities; an empty list without one."""
    warmup = session.settings.warmup
    return [] if warmup is None else [warmup.steps, *warmup.densities]


def _own(
    session: Session, state: Mapping[str, Any], leftovers: Mapping[str, Tensor]
) -> dict[str, object]:
    own: dict[str, object] = {"part": _part(session.ledger), "state": dict(state)}
    own["tensors"] = _count(state, leftovers)
    if leftovers:
        own["leftovers"] = dict(leftovers)
    if session.rates.units:  # per rank, as one that has left a Join has others
        own["rates"] = by_rate(session.rates.units)
    if session.clip is not None and session.clip.seen is not None:
        own["gradient_norm"] = session.clip.seen
    return {"ranks": {session.rank_name(session.rank): own}}


def load(session: Session, saved: object, *, strict: Strict) -> None:
    """Load what `state_of` returned; raises PlanError, and changes nothing, if it does not fit.

    saved: a state, or states of several ranks.
    """
    checked(session, saved, strict=strict)()


def checked(session: Session, saved: object, *, strict: Strict) -> Callable[[], None]:
    """Check a state as `load` does, raising PlanError if it does not fit; returns a function that
    loads it. So several sessions can load all or nothing."""
    head, ranks = _read(saved)
    now = session.plan_at(head["taken"])
    _check_names(head, ranks, now)
    changed = _changes(head["plan"], now)
    if strict == "alike":
        _check_dynamics(head, now)
        _check_run(head, session)
    elif strict:
        # Warm-up goes on only at the next step; when it is dense depends on the number of ranks.
        then = (head["taken"], max(head["taken"] - 1, 0))
        plans = [session.plan_at(taken, head["world"]) for taken in then]
        passes = any(not _changes(head["plan"], plan) for plan in plans)
        _check_same(head, "" if passes else changed, session)
    ledger = Ledger(
        _plan_saved(head["plan"], now) if changed else now, session.rank, session.world,
        session.machines, device=session.device, seed=session.settings.seed,
    )  # fmt: skip
    own = _of_this_rank(head, ranks, session, ledger)
    _fill(ledger, own)
    rates = rates_of(own)
    if changed:
        ledger.check_next(now)
        ledger.adopt(now)

    def take_over() -> None:
        session.go_to(head["step"], head["taken"])
        session.ledger.take_over(ledger)
        session.loss_scale = head["loss_scale"]
        session.rates.units = rates
        if session.clip is not None:
            session.clip.seen = own.get("gradient_norm")
        if session.recording is not None:
            session.recording.moved()

    return take_over


def _check_same(head: Mapping[str, Any], changed: str, session: Session) -> None:
    """Raise PlanError unless strategies, seed and warm-up are those the state was saved with."""
    changed = changed or _changes(head["aim"], session.whole_plan)
    if changed:
        raise PlanError(
            f"a state must be loaded with the strategies that it was saved with; {changed}. "
            "Attach those, load, and then call handle.adopt(plan); or load with strict=False, "
            "which does the same."
        )
    _check_run(head, session)


def _check_dynamics(head: Mapping[str, Any], now: Plan) -> None:
    """Raise PlanError unless the saved strategies mean the same to the optimizer as the plan's."""
    own, second = Dynamics.of(now.main_strategy), beside.second(now.main_strategy)
    alike = {own, own.of_vectors, PLAIN, *(Dynamics.of(s) for s in [second] if s is not None)}
    texts = [text for text, names in head["plan"].items() if names]
    found = [Dynamics.of(Strategy.parse(text)) for text in texts]
    others = [t for t, d in zip(texts, found) if d not in alike]
    # A strategy without memory is PLAIN, and so are rows beside any; poured states have no plan.
    is_plain = own != PLAIN and head["step"] > 0 and not any(d == own for d in found)
    if others or is_plain:
        was = f"'{others[0]}'" if others else "one that leaves the momentum to the optimizer"
        raise PlanError(
            "a state must be loaded with a plan that keeps the same momentum; it was saved with "
            f"{was}, and the plan here begins with '{now.main_strategy}'. Attach with strategies "
            "and an optimizer of the same kind, or load with strict=False, which keeps what can "
            "be kept."
        )


def _check_run(head: Mapping[str, Any], session: Session) -> None:
    """Raise PlanError unless the seed and the warm-up are those the state was saved with."""
    saved, own = head["warmup"], _warmup(session)
    if saved != own and head["taken"] < max([*saved[:1], *own[:1]]):
        raise PlanError(
            f"a state saved during warm-up must go on with the same one, {_in_words(saved)}; got "
            f"{_in_words(own)}, after {head['taken']} steps. Attach with the saved warm-up, or "
            "load with strict=False."
        )
    seed = session.settings.seed
    if head["seed"] != seed:
        raise PlanError(
            f"a state must be loaded with the seed that it was saved with, {head['seed']}, so "
            f"that stochastic compressors draw the same bits; got {seed}. Attach with seed="
            f"{head['seed']}, or load with strict=False."
        )


def _in_words(warmup: Sequence[float | str]) -> str:
    return f"Warmup({warmup[0]:g}, {list(warmup[1:])})" if warmup else "none"


def _read(saved: Any) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """Returns what all ranks' states have in common, and each rank's entry. Raises PlanError if
    they differ where they must not."""
    states = list(saved) if isinstance(saved, list | tuple) and saved else [saved]
    heads, ranks = list[dict[str, Any]](), dict[str, Mapping[str, Any]]()
    for state in map(STATE.take, states):
        heads.append({key: state[key] for key in COMMON})
        twice = [name for name in state["ranks"] if name in ranks]
        if twice:
            raise PlanError(
                f"each rank's state must be passed once; that of rank {twice[0]} came twice. Let "
                "each group of ranks, such as a pipeline stage, load only its own states."
            )
        ranks |= state["ranks"]
    for key in heads[0]:
        different = [head[key] for head in heads if head[key] != heads[0][key]]
        if different:
            raise PlanError(
                f"states of several ranks must be of one checkpoint; these differ in their {key}: "
                f"{heads[0][key]} and {different[0]}. Load those that were saved together."
            )
    return heads[0], ranks


def _check_names(
    head: Mapping[str, Any], ranks: Mapping[str, Mapping[str, Any]], now: Plan
) -> None:
    """Raise PlanError unless the state has one strategy for each parameter. A state from
    `poured_state_of`, which has no memory by parameter, may have none."""
    present = {name for bucket in now.buckets for name in bucket.names}
    is_poured = not head["plan"] and not any(
        tensors for entry in ranks.values() for tensors in entry.get("state", {}).values()
    )
    for key in ("plan", "aim"):
        names = [name for own in head[key].values() for name in own]
        strangers, left_out = sorted(set(names) - present), sorted(present.difference(names))
        wrong = strangers or left_out or len(names) > len(present)
        if wrong and not (is_poured and not names):
            raise PlanError(
                f"a saved state must have the model's parameters, each once; in its {key} "
                f"{', '.join(strangers[:5]) or 'nothing'} is not in the model, "
                f"{', '.join(left_out[:5]) or 'nothing'} is missing. Load the state of this very "
                "model."
            )


def wanted(session: Session, before: int) -> list[str]:
    """Returns the names of the entries that this rank needs from a state of `before` ranks."""
    found = sources(session.rank, session.world, before) if before else []
    return [session.rank_name(k) for k in found]


def _of_this_rank(
    head: Mapping[str, Any], ranks: Mapping[str, Mapping[str, Any]], session: Session,
    ledger: Ledger,
) -> Mapping[str, Any]:  # fmt: skip
    """Returns this rank's entry, regrouped if the number of ranks has changed."""
    before, now = head["world"], session.world
    names = {k: session.rank_name(k) for k in sources(session.rank, now, before)}
    missing = [name for name in names.values() if name not in ranks]
    if missing:
        if before == now:
            rule = "each rank must load the state it saved"
        else:
            rule = (
                f"a state saved with {before} ranks and loaded with {now} passes from rank k to "
                f"rank k mod {now}"
            )
        raise PlanError(
            f"{rule}; rank {session.rank_name(session.rank)} needs that of "
            f"{', '.join(missing[:5])}, and has that of {', '.join(sorted(ranks)[:5]) or 'none'}. "
            "Save one file per rank; load this rank's, or all of them as a list."
        )
    own = {k: ranks[name] for k, name in names.items()}
    for entry in own.values():
        _check_entry(entry, ledger)
    if before == now:
        return own[session.rank]
    return regroup(own, head["plan"], ledger.sizes, before, now)


def _check_entry(entry: Mapping[str, Any], ledger: Ledger) -> None:
    """Raise PlanError unless an entry is complete, finite, and fits this model."""
    state, left, part = entry.get("state", {}), entry.get("leftovers", {}), _part(ledger)
    count = _count(state, left)
    if count != entry.get("tensors"):
        raise PlanError(
            f"a rank's state must have as many tensors as were saved, {entry.get('tensors')}; got "
            f"{count}. torch.distributed.checkpoint.load fills only tensors that exist already; "
            "use handle.load_checkpoint(folder)."
        )
    if any(state.values()) and list(entry["part"]) != part:
        raise PlanError(
            "a rank must load residuals of the same part of each parameter; "
            f"saved as part {entry['part']} (which, of how many), loaded as {part}. Resume "
            "with as many ranks per machine, or call handle.flush() before saving."
        )
    shapes, sizes = ledger.shapes, ledger.sizes
    dtypes = {p.name: p.dtype for bucket in ledger.plan.buckets for p in bucket.parameters}
    for name, values in state.items():
        shape = shapes.get(name)
        if shape is None or not all(_fits(k, v, shape, dtypes[name]) for k, v in values.items()):
            found = {k: (str(v.dtype), tuple(v.shape)) for k, v in values.items()}
            raise PlanError(
                f"a saved state must have the model's parameters and shapes; '{name}' has "
                f"{found}, the model has {shape}. Load the state of this very model."
            )
    wrong = [name for name, x in left.items() if x.numel() != sizes.get(name)]
    if wrong:
        raise PlanError(
            "a state's leftovers must have the model's parameters and sizes; "
            f"{', '.join(wrong[:5])} have not. Load the state of this very model."
        )
    for name, x in [*left.items(), *((n, x) for n, own in state.items() for x in own.values())]:
        if not x.isfinite().all():
            raise PlanError(
                f"a saved state must be finite; some of '{name}' is not. Load an earlier "
                "checkpoint."
            )


def _fits(key: str, x: Tensor, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a tensor may be remembered of a parameter; sizes of pieces are checked later."""
    if is_waiting(key) and x.dtype != torch.float32:
        return False
    own = key in ("velocity", RIGHT_FACTOR, THRESHOLD)  # members of other packages have other keys
    if own and str(x.dtype) not in ("torch.float32", f"torch.{dtype}"):
        return False
    if key not in OF_OTHER_SHAPE:
        return x.shape == shape
    dimensions = 2 if key == RIGHT_FACTOR else 1
    return x.dim() == dimensions and (key != THRESHOLD or x.numel() == 1)


def _count(state: Mapping[str, Any], leftovers: Mapping[str, Any]) -> int:
    return sum(map(len, state.values())) + len(leftovers)


def _changes(saved: Names, now: Plan) -> str:
    """Returns, in words, the first parameter that has another strategy now than when saved."""
    known = {str(s): s.expand() for s in now.strategies}
    for text, names in saved.items():
        strategy = known.get(text) or Strategy.parse(text).expand()
        for name in names:
            mine = now.strategy_of(name)
            if mine.expand() != strategy:
                return f"'{name}' was saved with '{text}', and has '{mine}' here"
    return ""


def _plan_saved(saved: Names, now: Plan) -> Plan:
    """Returns a plan of the saved strategies for the parameters of this plan."""
    known = {p.name: p for bucket in now.buckets for p in bucket.parameters}
    buckets, strategies = list[Bucket](), list[Strategy]()
    for text, names in saved.items():
        for kind in dict.fromkeys((known[n].dtype, known[n].sparse) for n in names):
            of_kind = (known[n] for n in names if (known[n].dtype, known[n].sparse) == kind)
            buckets.append(Bucket(tuple(of_kind)))
            strategies.append(Strategy.parse(text))
    return Plan(tuple(buckets), tuple(strategies))


def _fill(ledger: Ledger, entry: Mapping[str, Any]) -> None:
    """Copy an entry's tensors into a ledger, on the model's device."""
    device = ledger.device
    for name, values in entry.get("state", {}).items():
        for key, value in values.items():
            own = ledger.placed(name, key, value.detach().clone())
            ledger.memory[name][key] = own if key in OF_OTHER_SHAPE else own.reshape(-1)
    try:
        for context in ledger.contexts:
            context.leftovers()
    except RuntimeError as error:
        raise PlanError(
            "a rank's residuals must have the sizes of its pieces in the plan that they were "
            f"saved with; {error}. Load the state of this very model."
        ) from error
    left = entry.get("leftovers", {})
    ledger.leftovers = {n: x.detach().to(device, copy=True).reshape(-1) for n, x in left.items()}


def _part(ledger: Ledger) -> list[int]:
    """Returns which part of each parameter a rank keeps, and the number of parts."""
    if ledger.machines is None or all(map(ledger.is_own, ledger.shapes)):
        return [0, 1]
    own = ledger.machines.node(ledger.rank).ranks
    return [own.index(ledger.rank), ledger.machines.per_node]
