"""Compares the kernels of a device with their twins in torch, bit for bit.

The same cases serve tests in Triton's interpreter, `gradwire doctor` on a machine with a GPU, and
benchmarks/gpu. They need neither pytest nor the C++ extension.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.kernels import formats, segments
from gradwire.kernels.index_codes import INDEX_CODES, code_bytes
from gradwire.kernels.status import new_status
from gradwire.kernels.values import SILENCE, AdamStep, Noise, Reaching

_NAMES = (
    "INT8", "LEVELS2", "LEVELS4", "LEVELS8", "LLOYD1", "LLOYD2", "E4M3", "TERNARY", "POWERS",
    "SIGNS", "SIGNS1", "SIGNS2", "E2M1X", "E3M2X",
)  # fmt: skip
FORMATS: dict[str, formats.Format] = {name: getattr(formats, name) for name in _NAMES}
_UPDATED = {name: form for name, form in FORMATS.items() if name not in ("SIGNS", "SIGNS2")}
"""The formats to try with recurrences, where the sign formats are alike: one of them is enough."""
RULES = ((None, False), (0.9, False), (0.9, True))
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
HOW = AdamStep.of(3, 0.9, 0.99, 1e-8, factor=1.5, scale=0.5)


class Case(NamedTuple):
    """One call of an operation of `kernels.table.Room`. make: returns fresh arguments, on the
    CPU."""

    name: str
    operation: str
    make: Callable[[], list[Any]]


def difference(case: Case, room: Any, device: torch.device | str) -> str:
    """Says how the room's results on the device differ from the twins'; "" if they do not.

    room: a module with the operations of `kernels.table.Room`. Blocks until the device is done.
    """
    mine = [_moved(x, device) for x in case.make()]
    wanted = case.make()
    found = getattr(room, case.operation)(*mine)
    given = getattr(twins, case.operation)(*wanted)
    both = zip([*_tensors(mine), *_made(found)], [*_tensors(wanted), *_made(given)])
    for number, (x, y) in enumerate(both):
        if x.shape != y.shape:
            return f"{case.name}: tensor {number} has {x.numel()} elements, not {y.numel()}"
        if not alike(x.cpu(), y):
            wrong = int((x.cpu() != y).sum())
            return f"{case.name}: tensor {number} differs in {wrong} of {y.numel()} elements"
    if isinstance(given, bool | int) and found != given:
        return f"{case.name}: it returns {found}, and {given} is right"
    return ""


def _made(found: Any) -> list[Tensor]:
    """The tensors that an operation returns."""
    given = found if isinstance(found, list) else []
    return [x for one in given if isinstance(one, Reaching) for x in one]


def room_of_cuda() -> Any:
    """Returns the room of CUDA tensors. Raises ImportError without Triton."""
    return importlib.import_module("gradwire.kernels.cuda")


def cases(n: int = 5000) -> Iterator[Case]:
    """Yields cases of all operations that have kernels on CUDA, on tensors of n elements and of
    few."""
    for dtype in FLOATS:
        for momentum, nesterov in RULES:
            yield from _of_rule(n, dtype, momentum, nesterov)
        yield from _of_dtype(n, dtype)
        yield from _of_additions(n, dtype)
        for name in FORMATS:
            yield from _of_format(n, dtype, name)
        if dtype == torch.float32:
            yield _of_many_codes(n, dtype)
        for kind in ("normal", "bad"):
            yield from _of_kind(n, dtype, kind)
    for code in INDEX_CODES:
        yield from _of_code(n, n // 50, code)
    yield from _of_headers()
    yield Case("dice", "dice", lambda: [
        Noise.of("x", 1), 2**32 - 9, torch.zeros(n, dtype=torch.int32),
    ])  # fmt: skip


def _of_rule(n: int, dtype: torch.dtype, momentum: float | None, nesterov: bool) -> Iterator[Case]:
    rule = "ef" if momentum is None else "nesterov" if nesterov else "momentum"
    for kind, name in ("normal", ""), ("ties", " of ties"), ("bad", " of NaN"):
        make = partial(_updates, n, dtype, momentum, nesterov, kind)
        yield Case(f"update_topk{name} {rule} {dtype}", "update_topk", make)
    make = partial(_coded_updates, n, dtype, momentum, nesterov)
    yield Case(f"update_codes {rule} {dtype}", "update_codes", make)
    make = partial(_undone, n, dtype, momentum, nesterov)
    yield Case(f"undo_topk {rule} {dtype}", "undo_topk", make)


def _of_dtype(n: int, dtype: torch.dtype) -> Iterator[Case]:
    yield Case(f"adam_codes {dtype}", "adam_codes", lambda: _adam(n, dtype))
    yield Case(f"adam {dtype}", "adam", lambda: [*_moments(n, dtype), HOW, new_status()])
    yield Case(f"undo_adam {dtype}", "undo_adam", lambda: [*_moments(n, dtype), HOW])
    yield Case(f"topk {dtype}", "topk", lambda: [
        drawn(n, 1, dtype=dtype), 40, torch.zeros(40, dtype=torch.int32), torch.zeros(40),
        new_status(), 0.5,
    ])  # fmt: skip
    yield Case(f"accumulate_dense {dtype}", "accumulate_dense", lambda: [
        torch.zeros(n, dtype=dtype), [drawn(n, r, dtype=dtype) for r in range(3)], 3.0,
    ])  # fmt: skip
    yield Case(f"accumulate_many_dense {dtype}", "accumulate_many_dense", lambda: [[
        segments.SumDense(torch.zeros(few, dtype=dtype), [
            drawn(few, r, dtype=FLOATS[i % 3]) for r in range(i)
        ], 1.0 + i)
        for i, few in enumerate((n, 1, n // 3, 0, 70))
    ]])  # fmt: skip
    yield Case(f"cast_many to {dtype}", "cast_many", lambda: [[
        segments.CastInto(drawn(few, i, "bad" if i == 1 else "normal", FLOATS[i % 3]),
                          torch.ones(few, dtype=dtype))
        for i, few in enumerate((n, n // 2, 1, 0, 70))
    ], new_status()])  # fmt: skip
    yield Case(f"accumulate {dtype}", "accumulate", lambda: [
        torch.zeros(n, dtype=dtype), [places(n, n // 9, r) for r in range(3)],
        [drawn(n // 9, r) for r in range(3)], 3.0,
    ])  # fmt: skip
    yield Case(f"spoil_if {dtype}", "spoil_if", lambda: [
        new_status().fill_(1), drawn(n, 5, dtype=dtype),
    ])  # fmt: skip
    yield Case(f"subtract {dtype}", "subtract", lambda: [
        drawn(n, 1), drawn(n, 2, dtype=dtype), torch.zeros(n), new_status(),
    ])  # fmt: skip


def _of_additions(n: int, dtype: torch.dtype) -> Iterator[Case]:
    """Cases of the additions that take back from a residual, or give back to it."""
    yield Case(f"add_cast {dtype}", "add_cast", lambda: [
        drawn(n, 1), drawn(n, 2, dtype=dtype), -1.0,
    ])  # fmt: skip
    if dtype == torch.float32:
        yield Case("add", "add", lambda: [
            drawn(n, 1), places(n, n // 9, 2), drawn(n // 9, 3), -1.0,
        ])  # fmt: skip
        yield from (_of_added_codes(n, name) for name in FORMATS)


def _of_added_codes(n: int, name: str) -> Case:
    form = FORMATS[name]
    return Case(f"add_codes {name}", "add_codes", lambda: [
        form, drawn(n, 1), *coded_payload(form, n, 2), -1.0,
    ])  # fmt: skip


def _of_headers() -> Iterator[Case]:
    words = 0x3245524957475247, 1, 2**62 + 5, -7
    yield Case("stamp", "stamp", lambda: [torch.ones(4, dtype=torch.int64), words])
    yield from (_of_judged(words, flags) for flags in ((0, 0), (1, 0), (2, 1), (4, 0)))


def _of_judged(words: tuple[int, int, int, int], flags: tuple[int, ...]) -> Case:
    first, _, *facts = words
    return Case(f"judge of {flags}", "judge", lambda: [
        torch.tensor([[first, flag, *facts] for flag in flags]), (first, *facts), new_status(),
    ])  # fmt: skip


def _of_format(n: int, dtype: torch.dtype, name: str) -> Iterator[Case]:
    form = FORMATS[name]
    yield Case(f"encode_codes {name} {dtype}", "encode_codes", lambda: [
        form, drawn(n, 2, dtype=dtype), *_rooms(form, n), new_status(), Noise.of("x"), None,
    ])  # fmt: skip
    yield Case(f"accumulate_codes {name} {dtype}", "accumulate_codes", lambda: [[segments.SumCodes(
        form, torch.zeros(n, dtype=dtype), [coded_payload(form, n, r) for r in range(3)], 3.0,
    )]])  # fmt: skip


def _of_many_codes(n: int, dtype: torch.dtype) -> Case:
    return Case(f"encode_many_codes {dtype}", "encode_many_codes", lambda: [[
        segments.EncodeCodes(
            form, drawn(few, i, "ties", dtype), *_rooms(form, few),
            SILENCE if few == 70 else Noise.of(name, 1), 2.5 if few == 70 else None,
        )
        for i, (name, form) in enumerate(FORMATS.items()) for few in (n // 4, 70)
    ], new_status()])  # fmt: skip


def _of_kind(n: int, dtype: torch.dtype, kind: str) -> Iterator[Case]:
    yield Case(f"reach of {kind} {dtype}", "reach", lambda: [[
        segments.Reach(drawn(few, i, kind, dtype), least)
        for i, (few, least) in enumerate(((n, 1.5), (0, 1.0), (70, 2.0**-149), (n // 3, 1e30)))
    ], new_status()])  # fmt: skip
    yield Case(f"cast of {kind} to {dtype}", "cast", lambda: [
        drawn(n, 4, kind), torch.zeros(n, dtype=dtype), new_status(),
    ])  # fmt: skip
    yield Case(f"flag_non_finite of {kind} {dtype}", "flag_non_finite", lambda: [
        drawn(n, 4, kind, dtype), new_status(),
    ])  # fmt: skip


def _of_entries(n: int, k: int, code: str, dtype: torch.dtype) -> Case:
    whole = code == "int32"
    return Case(f"write_entries {code} {dtype}", "write_entries", lambda: [[
        segments.WriteEntries(
            places(n, few, few), drawn(few, 2) * 1e5, n, code,
            torch.ones(few, dtype=torch.int32) if whole
            else torch.ones(code_bytes(code, n, few), dtype=torch.uint8),
            torch.zeros(few, dtype=dtype), torch.zeros(few) if few != k else None,
            drawn(n, 4) if few not in (1, k) else None,
        )
        for few in (k, 0, 1, k // 3)
    ]])  # fmt: skip


def _of_code(n: int, k: int, code: str) -> Iterator[Case]:
    yield Case(f"encode_indices {code}", "encode_indices", lambda: [
        places(n, k, 1), n, code, torch.zeros(code_bytes(code, n, k), dtype=torch.uint8),
    ])  # fmt: skip
    yield from (_of_entries(n, k, code, dtype) for dtype in FLOATS)
    yield Case(f"decode_indices {code}", "decode_indices", lambda: [
        coded_section(n, k, code, 1), n, code, torch.zeros(k, dtype=torch.int32),
    ])  # fmt: skip
    yield Case(f"add_coded {code}", "add_coded", lambda: [
        drawn(n, 1), coded_section(n, k, code, 1), code, drawn(k, 2, dtype=torch.bfloat16), -1.0,
    ])  # fmt: skip
    yield Case(f"accumulate_coded {code}", "accumulate_coded", lambda: [[segments.SumCoded(
        torch.zeros(n), [code] * 3, [coded_section(n, k, code, r) for r in range(3)],
        [drawn(k, r) for r in range(3)], 3.0,
    )]])  # fmt: skip


# -- their arguments ---------------------------------------------------------------------------


def drawn(n: int, seed: int, kind: str = "normal", dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns (n,) numbers: normal, with ties, nearly all zeros, or with inf and NaN ("bad"); -0
    and denormals are among them."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    x = (x * 4).round() / 4 if kind == "ties" else x
    if kind == "zeros":
        x[torch.arange(n).remainder(97) > 0] = 0.0
    if n > 8:
        x[3], x[4], x[5] = -0.0, 1e-40, -1e-43
    x = x.to(dtype)
    if kind == "bad" and n > 9:
        x[7], x[8], x[9] = torch.nan, torch.inf, -torch.inf
    return x


def places(n: int, k: int, seed: int) -> Tensor:
    """Returns k of the places below n, ascending: (k,) int32."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[:k].sort().values.int()


def _updates(
    n: int, dtype: torch.dtype, momentum: float | None, nesterov: bool, kind: str
) -> list[Any]:
    made = []
    for i, (size, k) in enumerate(
        ((n, n // 100), (0, 0), (1, 1), (n // 3, n // 9), (n + 4096, n // 50))
    ):
        u = None if momentum is None else drawn(size, 7 + i)
        made.append(segments.UpdateTopk(
            drawn(size, i, kind, dtype), u, drawn(size, 3 + i), k,
            torch.zeros(k, dtype=torch.int32), torch.zeros(k),
            None if u is None else torch.zeros(k), momentum, nesterov, mask=i != 3, scale=0.5,
            decay=0.9 if momentum is None else 1.0,
            hint=(2.0, 0.0, 0.5, torch.tensor([0.5, 0.3]), 1.5)[i],
        ))  # fmt: skip
    return [made, new_status()]


def _undone(n: int, dtype: torch.dtype, momentum: float | None, nesterov: bool) -> list[Any]:
    return [[
        segments.UndoTopk(
            None if i == 2 else drawn(size, i, dtype=dtype),
            None if momentum is None else drawn(size, 7 + i), drawn(size, 3 + i),
            places(size, k, i), drawn(k, 5), None if momentum is None else drawn(k, 6), momentum,
            nesterov, i != 3, 0.5, 0.9,
        )
        for i, (size, k) in enumerate(((n, n // 100), (0, 0), (n // 3, n // 9), (4096 + n, 1)))
    ]]  # fmt: skip


def _rooms(form: formats.Format, n: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(form.code_bytes(n), dtype=torch.uint8), torch.zeros(form.scales(n))


def coded_payload(form: formats.Format, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns codes and scales of n numbers."""
    codes, scales = _rooms(form, n)
    twins.encode_codes(form, drawn(n, seed), codes, scales, new_status(), Noise.of("x", seed))
    return codes, scales


def _coded_updates(
    n: int, dtype: torch.dtype, momentum: float | None, nesterov: bool
) -> list[Any]:
    made = [
        segments.UpdateCodes(
            form, drawn(n, i, dtype=dtype),
            None if momentum is None else drawn(n, i + 20), drawn(n, i + 40),
            *_rooms(form, n), Noise.of(name, 1), momentum, nesterov, 0.5,
            0.9 if momentum is None else 1.0,
        )
        for i, (name, form) in enumerate(_UPDATED.items())
    ]  # fmt: skip
    return [made, new_status()]


def _moments(n: int, dtype: torch.dtype) -> list[Any]:
    """A gradient, the moments, and the residual."""
    return [drawn(n, 1, "bad", dtype), (drawn(n, 2), drawn(n, 3).abs()), drawn(n, 4)]


def _adam(n: int, dtype: torch.dtype) -> list[Any]:
    made = [
        segments.AdamCodes(
            form, drawn(n, i, dtype=dtype),
            (drawn(n, i + 20), drawn(n, i + 40).abs()), drawn(n, i + 60), HOW,
            *_rooms(form, n), Noise.of(name, 1),
        )
        for i, (name, form) in enumerate(_UPDATED.items())
    ]  # fmt: skip
    return [made, new_status()]


def coded_section(n: int, k: int, code: str, seed: int) -> Tensor:
    """Returns a section of k coded places below n."""
    section = torch.zeros(code_bytes(code, n, k), dtype=torch.uint8)
    twins.encode_indices(places(n, k, seed), n, code, section)
    return section


# -- trees of arguments ------------------------------------------------------------------------


def _moved(x: Any, device: torch.device | str) -> Any:
    if isinstance(x, Tensor):
        return x.to(device, copy=True)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_moved(y, device) for y in x))
    if isinstance(x, list | tuple):
        return type(x)(_moved(y, device) for y in x)
    return x


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for y in x:
            yield from _tensors(y)


def alike(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, where every NaN is the same."""
    if not y.is_floating_point():
        return torch.equal(x, y)
    integers = torch.int32 if y.dtype == torch.float32 else torch.int16
    same = (x.isnan() & y.isnan()) | (x.view(integers) == y.view(integers))
    return x.dtype == y.dtype and bool(same.all())
