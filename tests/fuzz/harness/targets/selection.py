"""Selection, updates around it, and their inverse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwire.kernels import Journal, selection, undo, update
from gradwire.kernels.segments import Reach, UndoTopk, UpdateTopk
from harness.draws import Draw, Made
from harness.targets._register import all_unless_raised, status, target
from harness.targets.codes import many, recurrence


def _written(given: dict[str, Any], hint: float) -> object:
    """The tensors alone: hints differ where the twin has none to return."""
    return [v for v in given.values() if isinstance(v, Tensor)]


@target(selection.topk, same=_written, weight=8)
def _topk(draw: Draw) -> dict[str, object]:
    n = draw.size()
    k = draw.part(n)
    return {
        "x": draw.floats(n), "k": k, "indices": torch.zeros(k, dtype=torch.int32),
        "values": torch.zeros(k), "status": status(),
        "hint": draw.one((0.0, 0.0, 0.5, 2.0, 1e-30, 1e30)),
    }  # fmt: skip


@target(selection.reaching)
def _reaching(draw: Draw) -> dict[str, object]:
    least = draw.one((1.0, 0.1, 2.5, 1e-40, 1e30))
    return {"x": draw.floats(draw.size()), "least": least, "status": status()}


@target(selection.reach)
def _reach(draw: Draw) -> dict[str, object]:
    made = [
        Made(Reach, {"x": draw.floats(draw.size()), "least": draw.one((1.0, 0.1, 1e-40))})
        for _ in range(draw.whole(0, 3))
    ]
    return {"segments": made, "status": status()}


@target(selection.fallbacks, weight=1, same=None)
def _fallbacks(draw: Draw) -> dict[str, object]:
    return {}


def _state(draw: Draw) -> dict[str, object]:
    """Draws the arguments of an update around a selection."""
    n, how = draw.size(), recurrence(draw)
    k, given = draw.part(n), how["momentum"] is not None
    return {
        "gradient": draw.floats(n), "velocity": draw.floats(n, torch.float32) if given else None,
        "residual": draw.floats(n, torch.float32), "k": k,
        "indices": torch.zeros(k, dtype=torch.int32), "values": torch.zeros(k),
        "velocities": torch.zeros(k) if given else None, "status": status(),
        "mask": draw.chance(0.5), **how,
    }  # fmt: skip


@target(update.update_topk, same=_written, weight=8)
def _update_topk(draw: Draw) -> dict[str, object]:
    return _state(draw)


@target(update.update_many_topk, same=all_unless_raised)
def _update_many_topk(draw: Draw) -> dict[str, object]:
    return many(draw, UpdateTopk, _state)


def _of_all(own: dict[str, object]) -> dict[str, object]:
    """The arguments without those about the elements that are sent."""
    sent = ("k", "indices", "values", "velocities", "mask")
    return {name: value for name, value in own.items() if name not in sent}


@target(update.advance)
def _advance(draw: Draw) -> dict[str, object]:
    return _of_all(_state(draw))


def _undo(draw: Draw) -> dict[str, object]:
    own = _state(draw)
    n, k = own["residual"].numel(), own.pop("k")  # type: ignore[attr-defined]
    del own["hint"], own["status"]
    own["journal"] = None
    own["indices"] = draw.places(int(k), n)  # type: ignore[call-overload]
    return own


@target(undo.undo_topk)
def _undo_topk(draw: Draw) -> dict[str, object]:
    return _undo(draw)


@target(undo.undo_many_topk)
def _undo_many_topk(draw: Draw) -> dict[str, object]:
    given = [_undo(draw) for _ in range(draw.whole(0, 3))]
    for own in given:
        own["gradient"] = draw.one((own["gradient"], None))
    return {"segments": [Made(UndoTopk, own) for own in given]}


@target(undo.restore_topk)
def _restore_topk(draw: Draw) -> dict[str, object]:
    own = _undo(draw)
    return {name: own[name] for name in
            ("velocity", "residual", "indices", "values", "velocities", "mask")}  # fmt: skip


def there_and_back(undone: dict[str, Any], **given: Any) -> int:
    """Makes an update, and its inverse with changed arguments: the journal is another's."""
    journal = Journal()
    own = {**given, "journal": journal}
    update.update_topk(**own)
    elements = journal.elements
    own = {name: value for name, value in own.items() if name not in ("k", "hint", "status")}
    undo.undo_topk(**{**own, **undone})
    return elements


@target(there_and_back, name="kernels.journal.Journal", same=None)
def _journal(draw: Draw) -> dict[str, object]:
    own = _state(draw)
    del own["journal"]
    undone = dict[str, object]()
    if draw.chance(0.5):
        n = draw.size()
        undone = {"residual": draw.tame(n), "gradient": draw.tame(n)}
        undone["velocity"] = draw.one((None, draw.tame(n)))
    return {"undone": undone, **own}
