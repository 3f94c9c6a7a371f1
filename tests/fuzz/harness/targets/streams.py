"""Streams cut among owners, rows, tables of hashes."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.kernels import coo, hash_memory, rows, streams
from harness.calls import everything
from harness.draws import FLOATS, Draw
from harness.targets._register import target


def _owners(draw: Draw) -> int:
    return draw.one((1, 2, 3, 4, 8, 17, 1000, 65536))


def _of_list(given: dict[str, Any], result: Any) -> object:
    """Compares everything if places are a list; else only their first and last entry are checked,
    and any result may come."""
    places = given["places"].long()
    is_list = bool((places.diff() > 0).all()) and not bool((places < 0).any())
    return is_list and everything(given, result)


@target(streams.split_stream, same=_of_list)
def _split_stream(draw: Draw) -> dict[str, object]:
    places, values = draw.stream(draw.size())
    return {
        "places": places, "values": values, "owners": _owners(draw), "seed": draw.word(),
        "places_out": torch.zeros_like(places), "values_out": torch.zeros_like(values),
    }  # fmt: skip


@target(streams.flat_places, same=_of_list)
def _flat_places(draw: Draw) -> dict[str, object]:
    n, owners = draw.size(), _owners(draw)
    places = draw.places(draw.part(n), n)
    return {
        "places": places, "owner": draw.whole(0, owners - 1), "owners": owners,
        "seed": draw.word(), "places_out": torch.zeros_like(places),
    }  # fmt: skip


@target(streams.place_stream)
def _place_stream(draw: Draw) -> dict[str, object]:
    n = draw.size()
    places, values = draw.stream(n)
    return {"out": draw.floats(n), "places": places, "values": values}


@target(streams.top_of_two, weight=8)
def _top_of_two(draw: Draw) -> dict[str, object]:
    n = draw.size()
    (a, x), (b, y) = draw.stream(n), draw.stream(n)
    k = draw.part(n)
    room = min(k, n, a.numel() + b.numel()) + draw.one((0, 0, 5))
    return {
        "n": n, "a_places": a, "a_values": x, "b_places": b, "b_values": y, "k": k,
        "places_out": torch.zeros(room, dtype=torch.int32),
        "values_out": torch.zeros(room, dtype=draw.one(FLOATS)),
    }  # fmt: skip


@target(streams.contained)
def _contained(draw: Draw) -> dict[str, object]:
    n = draw.size()
    places, among = (draw.places(draw.part(n), n) for _ in range(2))
    return {"places": places, "among": among, "out": torch.zeros(places.numel(), dtype=torch.bool)}


# -- rows -------------------------------------------------------------------------------------


def _matrix(draw: Draw, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Draws a matrix (r, d) with rows of zeros."""
    r, d = draw.whole(0, 40), draw.one((0, 1, 2, 3, 7, 16, 33))
    x = draw.floats(r * d, dtype).view(r, d)
    if r:
        x[torch.rand(r, generator=draw.generator) < draw.one((0.0, 0.5, 1.0))] = 0
    return x


@target(rows.nonzero_rows, same=lambda given, k: given["ids_out"][:k])
def _nonzero_rows(draw: Draw) -> dict[str, object]:
    x = _matrix(draw)
    return {"x": x, "ids_out": torch.zeros(x.shape[0], dtype=torch.int32)}


def _bounds(draw: Draw, columns: int) -> list[int]:
    return sorted(draw.whole(0, columns) for _ in range(draw.whole(1, 5)))


@target(rows.gather_stripes)
def _gather_stripes(draw: Draw) -> dict[str, object]:
    x = _matrix(draw)
    bounds = _bounds(draw, x.shape[1])
    ids = draw.places(draw.part(x.shape[0]), x.shape[0])
    out = torch.zeros(ids.numel() * (bounds[-1] - bounds[0]), dtype=x.dtype)
    return {"x": x, "ids": ids, "bounds": bounds, "out": out}


@target(rows.scatter_stripes)
def _scatter_stripes(draw: Draw) -> dict[str, object]:
    own = _gather_stripes(draw)
    own["stripes"] = own.pop("out")
    return own


@target(rows.single_ids)
def _single_ids(draw: Draw) -> dict[str, object]:
    sizes = [draw.whole(0, 20) for _ in range(draw.whole(1, 4))]
    lists = [torch.randint(-5, 30, (k,), generator=draw.generator).int() for k in sizes]
    return {"ids": lists}


@target(rows.sum_rows)
def _sum_rows(draw: Draw) -> dict[str, object]:
    lists, d = draw.whole(1, 4), draw.one((0, 1, 2, 3, 16, 33))
    dtype, kind = draw.one(FLOATS), draw.one((torch.int32, torch.int64))
    sizes = [draw.whole(0, 20) for _ in range(lists)]
    ids = [torch.randint(-5, 30, (k,), dtype=kind, generator=draw.generator) for k in sizes]
    return {
        "ids": ids, "rows": [draw.tame(k * d, dtype).view(k, d) for k in sizes],
        "divisor": draw.one((1.0, 3.0)), "dtype": draw.one(FLOATS),
    }  # fmt: skip


def rows_of(ids: torch.Tensor, values: torch.Tensor, rows: int, dtype: torch.dtype) -> object:
    """`kernels.rows_of` with ids that torch accepts."""
    if ids.dim() != 1 or values.dim() < 2 or ids.numel() != values.shape[0]:
        return None
    ids = ids.long() % max(rows, 1)
    x = torch.sparse_coo_tensor(ids[None], values, (max(rows, 1), *values.shape[1:]))
    return coo.rows_of(x, dtype)


@target(rows_of, name="kernels.coo.rows_of", spoiled=0.0)
def _rows_of(draw: Draw) -> dict[str, object]:
    k, d, n = draw.whole(0, 30), draw.one((1, 3, 16)), draw.whole(1, 40)
    ids = torch.randint(0, n, (k,), generator=draw.generator)
    return {"ids": ids, "values": draw.floats(k * d).view(k, d), "rows": n,
            "dtype": draw.one(FLOATS)}  # fmt: skip


# -- tables of hashes -------------------------------------------------------------------------


def _by_owner(given: dict[str, Any], found: Any) -> object:
    """Sorts each owner's part, whose order is arbitrary with several threads."""
    parts = torch.split(given["indices_out"], found.counts)
    return found.counts, [part.sort().values for part in parts]


def hash_partition(owners: int, **given: Any) -> object:
    """`hash_partition` with only as many owners as the twin can go through."""
    return hash_memory.hash_partition(owners=1000 if 1000 < owners <= 1 << 16 else owners, **given)


@target(hash_partition, name="kernels.hash_memory.hash_partition", same=_by_owner)
def _hash_partition(draw: Draw) -> dict[str, object]:
    n, owners = draw.size(large=0.0), draw.one((1, 2, 3, 16, 100))
    places = draw.places(draw.part(n), n)
    k = places.numel()
    shuffled = places[torch.randperm(k, generator=draw.generator)]
    slots = None if draw.chance(0.7) else (draw.whole(1, 500), draw.whole(0, 100))
    return {
        "indices": shuffled, "owners": owners, "seeds": [draw.word() for _ in range(4)],
        "indices_out": torch.zeros(k, dtype=torch.int32), "slots": slots,
        "threads": draw.one((1, 1, 1, 2, 5)),
    }  # fmt: skip
