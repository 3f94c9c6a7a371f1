"""What a session remembers, as a dictionary for torch.save, and taken over from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from gradwire.errors import PlanError
from gradwire.local import LATER_RESIDUALS, OF_OTHER_SHAPE, OWNERS_RESIDUAL
from gradwire.training.session import Session

FORMAT = 1


def state_of(session: Session) -> dict[str, object]:
    """What this rank remembers, by parameter name, in the parameters' shapes, or in those of
    the parts that it owns inside its machine; "leftovers" of a plan before this one.

    But for `OF_OTHER_SHAPE`: "owners_residual", (elements of the piece that this rank owns,),
    "right_factor", (columns, rank) of a matrix, "threshold", (1,), and the residuals of a path's
    later compressions, "residual/1" to "residual/3", of what this rank has there. "paths": by
    name, the strategy that these belong to.
    """
    state = {
        name: {key: _shaped(key, value, session.shapes[name]) for key, value in values.items()}
        for name, values in session.memory.items()
    }
    place = {**_place(session), "part": _part(session)}
    more: dict[str, object] = {"leftovers": dict(session.leftovers)} if session.leftovers else {}
    later = {name for name, own in session.memory.items() if own.keys() & set(LATER_RESIDUALS)}
    if later:
        more["paths"] = {name: str(session.plan.strategy_of(name)) for name in later}
    return {**place, "state": state, **more}


def poured_state_of(session: Session) -> dict[str, object]:
    """The same for whatever plan comes next: all that waits is "leftovers", in the parameters'
    sizes, which is added to the next gradients. For plans that can be adopted by each other."""
    return {**_place(session), "state": {}, "leftovers": session.waiting()}


def load(session: Session, saved: Mapping[str, object]) -> None:
    """Take over what `state_of` returned; PlanError if it does not fit."""
    part = _part(session)
    step, state = _checked(saved, session.rank, session.world, part, session.shapes)
    _check_paths(saved.get("paths", {}), state, session)
    leftovers = _checked_leftovers(saved.get("leftovers", {}), session.parameters)
    for name, mine in session.memory.items():
        mine.clear()
        for key, value in state.get(name, {}).items():
            own = value.detach().to(session.device).clone()
            mine[key] = own if key in OF_OTHER_SHAPE else own.reshape(-1)
    session.leftovers = leftovers
    for context in session.contexts:
        strategy = context.strategy
        if strategy.feedback is None and not strategy.collective.own_feedback:
            session.waits(context.leftovers())  # of another plan: nothing here would send it
            for name in context.bucket.names:
                for key in ("residual", OWNERS_RESIDUAL):
                    session.memory[name].pop(key, None)
    session.step = step


def _place(session: Session) -> dict[str, object]:
    own = {"rank": session.rank, "world": session.world}
    return {"format": FORMAT, "step": session.step, **own}


def _part(session: Session) -> list[int]:
    """Which part of each parameter a rank looks after, of how many."""
    if session.machines is None or all(map(session.is_whole, session.shapes)):
        return [0, 1]
    own = session.machines.node(session.rank).ranks
    return [own.index(session.rank), session.machines.per_node]


def _checked(
    saved: Mapping[str, object], rank: int, world: int, part: Sequence[int],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[int, Mapping[str, Mapping[str, Tensor]]]:  # fmt: skip
    step, state = saved.get("step"), saved.get("state")
    if (
        saved.get("format") != FORMAT
        or not isinstance(state, Mapping)
        or not isinstance(step, int)
    ):
        raise PlanError(
            f"gradwire's state has format {FORMAT}, a step and a state; got format "
            f"{saved.get('format')!r}. Load what handle.state_dict() returned on this rank."
        )
    if saved.get("world") != world:
        raise PlanError(
            f"residuals belong to the ranks that kept them; saved with {saved.get('world')} "
            f"ranks, loaded with {world}. Resume with as many ranks, or start without this state."
        )
    if saved.get("rank") != rank:
        raise PlanError(
            f"each rank loads the state it saved; this is rank {rank}, the state is rank "
            f"{saved.get('rank')}'s. Save one file per rank and load it on that rank."
        )
    if any(state.values()) and saved.get("part", [0, 1]) != part:
        raise PlanError(
            "residuals belong to the part of each parameter that a rank owns in its machine; "
            f"saved as part {saved.get('part')} (which, of how many), loaded as {part}. Resume "
            "with as many ranks per machine, or start without this state."
        )
    for name, values in state.items():
        shape = tuple(shapes[name]) if name in shapes else None
        wrong = {
            key: tuple(v.shape)
            for key, v in values.items()
            if tuple(v.shape) != shape and key not in OF_OTHER_SHAPE
        }
        if wrong or shape is None:
            raise PlanError(
                f"saved state has the model's parameters and shapes; '{name}' has {wrong}, the "
                f"model has {shape}. Load the state of this very model."
            )
    return step, state


def _check_paths(
    saved: object, state: Mapping[str, Mapping[str, Tensor]], session: Session
) -> None:
    """Only the path that kept them knows of which elements its later residuals are."""
    known = saved if isinstance(saved, Mapping) else {}
    for name in (name for name, values in state.items() if values.keys() & set(LATER_RESIDUALS)):
        if known.get(name) != (mine := str(session.plan.strategy_of(name))):
            raise PlanError(
                "residuals of a path's later compressions belong to that path; "
                f"'{name}' was saved by '{known.get(name)}', and goes by '{mine}' here. Load it "
                "with the plan that it was saved with, then change with handle.adopt(plan)."
            )


def _checked_leftovers(left: object, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    sizes = {name: p.numel() for name, p in parameters.items()}
    if not isinstance(left, Mapping) or any(
        not isinstance(x, Tensor) or x.numel() != sizes.get(name) for name, x in left.items()
    ):
        raise PlanError(
            "saved leftovers have the model's parameters and sizes; these have not. Load the "
            "state of this very model."
        )
    return {name: x.detach().to(parameters[name].device).clone() for name, x in left.items()}


def _shaped(key: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    return value if key in OF_OTHER_SHAPE else value.view(shape)
