"""Casts, sums of payloads, and the codes of their places."""

from __future__ import annotations

from typing import Any

import torch

import gradwire.kernels.torch as twins
from gradwire import kernels
from gradwire.kernels import (
    INDEX_CODES,
    CastInto,
    Shape,
    SumCoded,
    SumDense,
    WriteEntries,
    casts,
    coded,
    crowds,
    entries,
    index_codes,
    indices,
    shapes,
    sparse,
)
from gradwire.kernels import status as words
from harness.draws import FLOATS, Draw, Made
from harness.targets._register import status, target

DOMAINS = (2**31 - 1, 2**31 - 16, 2**20, 2**24 + 5)


@target(casts.cast)
def _cast(draw: Draw) -> dict[str, object]:
    x, told = draw.floats(draw.size()), draw.one((None, status()))
    return {"source": x, "target": torch.empty(x.numel(), dtype=draw.one(FLOATS)), "status": told}


@target(casts.cast_many)
def _cast_many(draw: Draw) -> dict[str, object]:
    made = [_cast(draw) for _ in range(draw.whole(0, 3))]
    segments = [Made(CastInto, {k: v for k, v in one.items() if k != "status"}) for one in made]
    return {"segments": segments, "status": status()}


@target(casts.add_cast)
def _add_cast(draw: Draw) -> dict[str, object]:
    x = draw.floats(draw.size())
    return {"v": draw.floats(x.numel(), torch.float32), "source": x, "factor": _factor(draw)}


@target(words.flag_non_finite)
def _flag_non_finite(draw: Draw) -> dict[str, object]:
    return {"x": draw.floats(draw.size()), "status": status()}


@target(words.finite_part)
def _finite_part(draw: Draw) -> dict[str, object]:
    return {"x": draw.floats(draw.size()), "status": draw.one((None, status()))}


@target(words.spoil_if)
def _spoil_if(draw: Draw) -> dict[str, object]:
    return {"status": status() + draw.one((0, 1, 3)), "x": draw.floats(draw.size())}


@target(words.copy_unless)
def _copy_unless(draw: Draw) -> dict[str, object]:
    n, word = draw.size(), status() + draw.one((0, 1, 3))
    return {"status": word, "x": draw.floats(n), "out": draw.floats(n)}


@target(words.subtract)
def _subtract(draw: Draw) -> dict[str, object]:
    n, word = draw.size(), status() + draw.one((0, 1, 3))
    x, out = (draw.floats(n, torch.float32) for _ in "xy")
    return {"x": x, "y": draw.floats(n), "out": out, "status": word}


@target(casts.is_finite)
def _is_finite(draw: Draw) -> dict[str, object]:
    return {"x": draw.floats(draw.size())}


def _factor(draw: Draw) -> float:
    return draw.one((1.0, -1.0, 0.5, 0.0, draw.real(-3, 3)))


def _divisor(draw: Draw) -> float:
    return draw.one((1.0, 2.0, 3.0, 8.0, -7.0, draw.real(1e-3, 1e3)))


@target(sparse.accumulate, weight=8)
def _accumulate(draw: Draw) -> dict[str, object]:
    n = draw.size()
    streams = [draw.stream(n) for _ in range(draw.whole(0, 4))]
    return {
        "out": draw.floats(n), "indices": [p for p, _ in streams],
        "values": [v for _, v in streams], "divisor": _divisor(draw),
    }  # fmt: skip


@target(sparse.add)
def _add(draw: Draw) -> dict[str, object]:
    n = draw.size()
    places, values = draw.stream(n, torch.float32)
    return {
        "v": draw.floats(n, torch.float32), "indices": places, "values": values,
        "factor": _factor(draw),
    }  # fmt: skip


@target(sparse.accumulate_dense)
def _accumulate_dense(draw: Draw) -> dict[str, object]:
    n = draw.size()
    dtype = None if draw.chance(0.3) else draw.one(FLOATS)
    payloads = [draw.floats(n, dtype) for _ in range(draw.whole(0, 5))]
    return {"out": draw.floats(n), "payloads": payloads, "divisor": _divisor(draw)}


@target(sparse.accumulate_many_dense)
def _accumulate_many_dense(draw: Draw) -> dict[str, object]:
    segments = [Made(SumDense, _accumulate_dense(draw)) for _ in range(draw.whole(0, 3))]
    return {"segments": segments}


# -- places in codes --------------------------------------------------------------------------


def _list(draw: Draw) -> tuple[int, torch.Tensor]:
    """Draws a number of elements, and the places of some."""
    if draw.chance(0.1):
        n = draw.one(DOMAINS)
        return n, draw.places(draw.whole(0, 40), n)
    n = draw.size()
    return n, draw.places(draw.part(n), n)


def _code(draw: Draw, n: int) -> str:
    return draw.one(INDEX_CODES if n < 2**22 else ("int32", "gap16", "elias_fano"))


def _section(draw: Draw, n: int, places: torch.Tensor, code: str) -> torch.Tensor:
    """Draws the code of the places, which is often right."""
    size = index_codes.code_bytes(code, n, places.numel())
    section = draw.bytes(size)
    if draw.chance(0.8):
        twins.encode_indices(places, n, code, section)
    if size and draw.chance(0.3):
        section[draw.whole(0, size - 1)] = draw.one((0, 1, 255, 128))
    return section


@target(indices.encode_indices)
def _encode_indices(draw: Draw) -> dict[str, object]:
    n, places = _list(draw)
    code = _code(draw, n)
    size = index_codes.code_bytes(code, n, places.numel())
    return {"indices": places, "n": n, "code": code, "section": draw.bytes(size)}


def _entries(draw: Draw) -> dict[str, object]:
    n, places = _list(draw)
    code, k = _code(draw, n), places.numel()
    section = draw.bytes(index_codes.code_bytes(code, n, k))
    if code == "int32" and draw.chance(0.5):
        section = torch.zeros(k, dtype=torch.int32)
    sent = torch.zeros(k) if draw.chance(0.5) else None
    keeps = sent is not None and n < 1 << 20 and draw.chance(0.5)
    return {
        "places": places, "values": torch.randn(k, generator=draw.generator), "n": n, "code": code,
        "section": section, "out": torch.zeros(k, dtype=draw.one(FLOATS)),
        "sent": sent, "residual": draw.floats(n, torch.float32) if keeps else None,
    }  # fmt: skip


@target(entries.write_entries)
def _write_entries(draw: Draw) -> dict[str, object]:
    segments = [Made(WriteEntries, _entries(draw)) for _ in range(draw.whole(0, 3))]
    return {"segments": segments, "status": status()}


@target(indices.decode_indices, weight=8)
def _decode_indices(draw: Draw) -> dict[str, object]:
    n, places = _list(draw)
    code = _code(draw, n)
    section = _section(draw, n, places, code)
    return {"section": section, "n": n, "code": code, "indices_out": torch.zeros_like(places)}


@target(index_codes.code_bytes)
def _code_bytes(draw: Draw) -> dict[str, object]:
    n = draw.whole(0, 5000)
    return {"code": draw.one(INDEX_CODES), "n": n, "k": draw.part(n)}


@target(index_codes.smallest)
def _smallest(draw: Draw) -> dict[str, object]:
    n = draw.whole(0, 5000)
    return {"n": n, "k": draw.part(n)}


def _coded(draw: Draw, n: int) -> tuple[list[str], list[torch.Tensor], list[torch.Tensor]]:
    """Draws codes, sections and values of a few payloads."""
    codes, sections, values = list[str](), list[torch.Tensor](), list[torch.Tensor]()
    for _ in range(draw.whole(0, 4)):
        places, value = draw.stream(n)
        code = draw.one(INDEX_CODES)
        whole = code == "int32" and draw.chance(0.5)
        codes.append(code)
        sections.append(places if whole else _section(draw, n, places, code))
        values.append(value)
    return codes, sections, values


def _sum_of_coded(draw: Draw) -> dict[str, object]:
    n = draw.size()
    codes, sections, values = _coded(draw, n)
    return {
        "out": draw.floats(n), "codes": codes, "sections": sections, "values": values,
        "divisor": _divisor(draw),
    }  # fmt: skip


@target(coded.accumulate_coded, weight=8)
def _accumulate_coded(draw: Draw) -> dict[str, object]:
    segments = [Made(SumCoded, _sum_of_coded(draw)) for _ in range(draw.whole(0, 3))]
    return {"segments": segments}


@target(coded.add_coded, weight=4)
def _add_coded(draw: Draw) -> dict[str, object]:
    n = draw.size()
    places, code = draw.places(draw.part(n), n), _code(draw, n)
    section = places if code == "int32" and draw.chance(0.5) else _section(draw, n, places, code)
    values = draw.floats(places.numel())
    return {
        "v": draw.floats(n, torch.float32), "section": section, "code": code, "values": values,
        "factor": draw.one((1.0, -1.0, 0.5)),
    }  # fmt: skip


@target(coded.decoded_places)
def _decoded_places(draw: Draw) -> dict[str, object]:
    n, places = _list(draw)
    code = _code(draw, n)
    section = _section(draw, n, places, code)
    return {"payload": 0, "section": section, "n": n, "code": code, "k": places.numel()}


def _merged(draw: Draw, n: int, values: list[torch.Tensor]) -> dict[str, object]:
    room = min(n, sum(v.numel() for v in values)) + draw.one((0, 0, 1, 40))
    return {
        "divisor": _divisor(draw), "places_out": torch.zeros(room, dtype=torch.int32),
        "values_out": torch.zeros(room, dtype=draw.one(FLOATS)),
    }  # fmt: skip


@target(kernels.merge_streams, weight=8)
def _merge_streams(draw: Draw) -> dict[str, object]:
    n = 2**24 + 1 if draw.chance(0.05) else draw.size()
    dense = min(n, 5000)
    streams = [draw.stream(dense) for _ in range(draw.whole(0, 4))]
    values = [v for _, v in streams]
    return {
        "n": n,
        "places": [p for p, _ in streams],
        "values": values,
        **_merged(draw, n, values),
    }


# -- crowds -----------------------------------------------------------------------------------


def _crowd(draw: Draw) -> tuple[int, torch.Tensor]:
    n = draw.size()
    if draw.chance(0.5):
        return n, draw.places(draw.part(n), n)
    chunks = draw.places(draw.part(-(-n // 16)), -(-n // 16)).long() * 16
    places = (chunks[:, None] + torch.arange(16)).flatten()
    places = places[places < n]
    kept = torch.rand(places.numel(), generator=draw.generator) < draw.one((1.0, 0.9, 0.4))
    return n, places[kept].int()


def _shape(draw: Draw, places: torch.Tensor, n: int) -> Shape:
    if draw.chance(0.1):
        return Shape(*(draw.whole(0, max(1, places.numel())) for _ in range(4)))
    return kernels.shape_of(places, n)


def _of_list(given: dict[str, Any], shape: Any) -> object:
    """The shape, if places are a list; else, as that is not checked, any may be returned."""
    places = given["places"].long()
    return bool((places.diff() > 0).all()) and not bool((places < 0).any()) and shape


@target(crowds.shape_of, same=_of_list)
def _shape_of(draw: Draw) -> dict[str, object]:
    n, places = _crowd(draw)
    return {"places": places, "n": n}


@target(shapes.shaped_bytes)
def _shaped_bytes(draw: Draw) -> dict[str, object]:
    n, places = _crowd(draw)
    return {"n": n, "shape": _shape(draw, places, n)}


def _room(draw: Draw, n: int, shape: Shape) -> torch.Tensor:
    return draw.bytes(shapes.shaped_bytes(n, shape) if shape.is_possible(n) else n)


@target(crowds.encode_shaped)
def _encode_shaped(draw: Draw) -> dict[str, object]:
    n, places = _crowd(draw)
    shape = _shape(draw, places, n)
    return {"places": places, "n": n, "shape": shape, "section": _room(draw, n, shape)}


@target(crowds.decode_shaped, weight=8)
def _decode_shaped(draw: Draw) -> dict[str, object]:
    n, places = _crowd(draw)
    shape = _shape(draw, places, n)
    section = _room(draw, n, shape)
    if draw.chance(0.8) and shape == kernels.shape_of(places, n):
        twins.encode_shaped(places, n, shape, section)
    if section.numel() and draw.chance(0.3):
        section[draw.whole(0, section.numel() - 1)] = draw.one((0, 1, 255, 128))
    out = torch.zeros(max(shape.entries, 0), dtype=torch.int32)
    return {"section": section, "n": n, "shape": shape, "places_out": out}
