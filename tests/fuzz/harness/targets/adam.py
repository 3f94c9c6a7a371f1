"""Adam's step, its inverse, and its codes."""

from __future__ import annotations

import torch

from gradwire.kernels import adam
from gradwire.kernels.segments import AdamCodes
from gradwire.kernels.values import AdamStep
from harness.draws import Draw
from harness.targets._register import all_unless_raised, status, target
from harness.targets.codes import FORMATS, _noise, _rooms, many


def _step(draw: Draw) -> dict[str, object]:
    n = draw.size()
    how = AdamStep.of(
        draw.whole(1, 1000), draw.one((0.0, 0.5, 0.9)), draw.one((0.0, 0.9, 0.999)),
        draw.one((1e-8, 1e-3)), factor=draw.real(1.0, 4.0), scale=draw.one((1.0, 0.3)),
    )  # fmt: skip
    moments = draw.floats(n, torch.float32), draw.floats(n, torch.float32).abs()
    v = draw.floats(n, torch.float32)
    return {"g": draw.floats(n), "moments": moments, "v": v, "how": how}


def _states(given: dict[str, object]) -> list[object]:
    moments = given["moments"]
    assert isinstance(moments, tuple)
    return [*moments, given["v"]]


@target(adam.adam)
def _adam(draw: Draw) -> dict[str, object]:
    return {**_step(draw), "status": status()}


@target(adam.undo_adam, same=lambda given, none: _states(given))
def _undo_adam(draw: Draw) -> dict[str, object]:
    return _step(draw)


def _codes_of_adam(draw: Draw) -> dict[str, object]:
    form, step = draw.one(FORMATS), _step(draw)
    g = step["g"]
    assert isinstance(g, torch.Tensor)
    own = {"noise": _noise(draw), "status": status(), "clip": draw.one((None, 0.3))}
    return {"form": form, **step, **_rooms(draw, form, g.numel()), **own}


@target(adam.adam_codes, same=all_unless_raised)
def _adam_codes(draw: Draw) -> dict[str, object]:
    return many(draw, AdamCodes, _codes_of_adam)
