"""Quantizers, signs, dice."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradwire.kernels import Journal, Noise, codes, formats, noise, signs
from gradwire.kernels.formats import Format
from gradwire.kernels.segments import EncodeCodes, SumCodes, UpdateCodes
from harness.draws import Draw, Made
from harness.targets._register import all_unless_raised, status, target, unless_raised
from harness.targets.sums import _divisor, _factor

FORMATS = (
    formats.INT8, formats.E4M3, formats.E5M2, formats.LEVELS2, formats.LEVELS4, formats.LEVELS8,
    formats.TERNARY, formats.POWERS, formats.LLOYD1, formats.LLOYD2,
    formats.E2M1X, formats.E3M2X, formats.E2M3X, formats.E4M3X,
    formats.SIGNS, formats.SIGNS1, formats.SIGNS2,
)  # fmt: skip


def _noise(draw: Draw) -> Noise:
    return Noise(draw.word(), draw.word(), draw.one((0, draw.word())))


def _rooms(draw: Draw, form: Format, n: int) -> dict[str, object]:
    """Buffers for codes and scales, of any content."""
    scales = torch.empty(form.scales(n)).uniform_(0, 2, generator=draw.generator)
    return {"codes": draw.bytes(form.code_bytes(n)), "scales": scales}


@target(codes.encode_codes, same=unless_raised)
def _encode_codes(draw: Draw) -> dict[str, object]:
    form, n = draw.one(FORMATS), draw.size()
    return {"form": form, "x": draw.floats(n), **_rooms(draw, form, n), "status": status(),
            "noise": _noise(draw), "clip": draw.one((None, 0.3, 2.5))}  # fmt: skip


def many(draw: Draw, kind: type, one: Callable[[Draw], dict[str, object]]) -> dict[str, object]:
    """Segments of a few parameters, with one status word."""
    given = [one(draw) for _ in range(draw.whole(0, 3))]
    for own in given:
        del own["status"]
    return {"segments": [Made(kind, own) for own in given], "status": status()}


def _encode_one(draw: Draw) -> dict[str, object]:
    form, n = draw.one(FORMATS), draw.size()
    return {"form": form, "x": draw.floats(n), **_rooms(draw, form, n), "noise": _noise(draw),
            "clip": draw.one((None, 0.3, 2.5)), "status": status()}  # fmt: skip


@target(codes.encode_many_codes, same=all_unless_raised)
def _encode_many_codes(draw: Draw) -> dict[str, object]:
    return many(draw, EncodeCodes, _encode_one)


def recurrence(draw: Draw) -> dict[str, object]:
    """Draws how state goes on from step to step."""
    momentum = draw.one((None, 0.0, 0.5, 0.9))
    return {
        "momentum": momentum, "nesterov": draw.chance(0.3), "scale": draw.one((1.0, 0.5, 3.0)),
        "decay": draw.one((1.0, 0.5)), "hint": draw.one((0.0, 0.0, 0.1, 2.0, 1e-30)),
        "journal": Made(Journal, {}) if draw.chance(0.5) else None,
    }  # fmt: skip


def _update_code(draw: Draw) -> dict[str, object]:
    form, n, how = draw.one(FORMATS), draw.size(), recurrence(draw)
    velocity = None if how["momentum"] is None else draw.floats(n, torch.float32)
    return {
        "form": form, "gradient": draw.floats(n), "velocity": velocity,
        "residual": draw.floats(n, torch.float32), **_rooms(draw, form, n),
        "noise": _noise(draw), "status": status(), "clip": draw.one((None, 2.5)), **how,
    }  # fmt: skip


@target(codes.update_codes, same=all_unless_raised)
def _update_codes(draw: Draw) -> dict[str, object]:
    return many(draw, UpdateCodes, _update_code)


def _sum_of_codes(draw: Draw) -> dict[str, object]:
    form, n = draw.one(FORMATS), draw.size()
    payloads = [tuple(_rooms(draw, form, n).values()) for _ in range(draw.whole(0, 4))]
    return {"form": form, "out": draw.floats(n), "payloads": payloads, "divisor": _divisor(draw)}


@target(codes.accumulate_codes, weight=8)
def _accumulate_codes(draw: Draw) -> dict[str, object]:
    segments = [Made(SumCodes, _sum_of_codes(draw)) for _ in range(draw.whole(0, 3))]
    return {"segments": segments}


@target(codes.add_codes)
def _add_codes(draw: Draw) -> dict[str, object]:
    form, n = draw.one(FORMATS), draw.size()
    v = draw.floats(n, torch.float32)
    return {"form": form, "v": v, **_rooms(draw, form, n), "factor": _factor(draw)}


@target(signs.largest, same=lambda given, found: found[0] < torch.inf and found)
def _largest(draw: Draw) -> dict[str, object]:
    return {"x": draw.floats(draw.size()), "squares": draw.chance(0.5)}


# -- dice -------------------------------------------------------------------------------------


@target(noise.random_bits)
def _random_bits(draw: Draw) -> dict[str, object]:
    first = draw.one((0, draw.size(), 2**31 - 5000))
    return {"noise": _noise(draw), "n": draw.size(), "first": first}


@target(noise.strata)
def _strata(draw: Draw) -> dict[str, object]:
    n = draw.one((draw.size(), 2**31 - 1))
    k = draw.part(min(n, 5000))
    return {"noise": _noise(draw), "n": n, "places": torch.zeros(k, dtype=torch.int32)}
