"""Prints a digest of what every kernel makes of the same numbers, for each instruction set.

    python tests/same_bits.py _native.so              compares with tests/golden/bits.txt
    python tests/same_bits.py _native.so --write      writes it

It needs neither torch nor NumPy, so that it also runs where these cannot, as under an emulator of
another processor. All numbers are finite: NaNs may differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import random
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden/bits.txt"
N = 5003  # blocks of every format, and a rest
FORMATS = (*range(10), *range(13, 17))
GIVEN = {6: 3.0}  # the scale where there is one in all
DICE = (123456789, 987654321, 55555)


class Room:
    """Memory for a kernel: of a size, or with a content."""

    def __init__(self, content: bytes | int) -> None:
        self.bytes = bytearray(content)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


def numbers(seed: int, n: int = N) -> bytes:
    """fp32 numbers of every kind that is finite: as gradients are, zeros, subnormal, huge."""
    dice = random.Random(seed)
    kinds = (
        lambda: dice.gauss(0, 1), lambda: dice.gauss(0, 1), lambda: dice.gauss(0, 1e-3),
        lambda: dice.choice((0.0, -0.0, 1.0, -1.0, 0.5, 2.5)), lambda: dice.gauss(0, 1e-41),
        lambda: dice.gauss(0, 1e-7),
    )  # fmt: skip
    return array("f", (dice.choice(kinds)() for _ in range(n))).tobytes()


def halves() -> bytes:
    """Every fp16 number that is finite."""
    return array("H", (w for w in range(1 << 16) if w & 0x7C00 != 0x7C00)).tobytes()


def places(seed: int, k: int, n: int) -> bytes:
    return array("i", sorted(random.Random(seed).sample(range(n), k))).tobytes()


def casts(core: Any, number: int) -> Iterator[tuple[str, bytes]]:
    wild = array("I", (random.Random(5).getrandbits(32) for _ in range(20000)))
    finite = array("I", (w for w in wild if w & 0x7F800000 != 0x7F800000)).tobytes()
    for name, source, from_, to in (
        ("fp32 to bf16", finite, 0, 1), ("fp32 to fp16", finite, 0, 2),
        ("fp16 to fp32", halves(), 2, 0), ("bf16 to fp16", numbers(6), 1, 2),
    ):  # fmt: skip
        n = len(source) // (4 if from_ == 0 else 2)
        given, out = Room(source), Room(4 * n)
        is_finite = core.cast(number, from_, to, given.at, out.at, n, False)
        yield name, bytes(out.bytes) + bytes([is_finite])
    given, total = Room(halves()), Room(4 * 63488)
    core.add_cast(number, 2, given.at, total.at, 63488, 0.3)
    yield "add fp16", bytes(total.bytes)


def selections(core: Any, number: int) -> Iterator[tuple[str, bytes]]:
    for k in (1, 37, 2500):
        x, index, value = Room(numbers(7)), Room(4 * k), Room(4 * k)
        found = core.topk(number, 0, x.at, N, k, index.at, value.at, 0.0)
        yield f"topk {k}", bytes(index.bytes + value.bytes) + struct.pack("f?", *found)
    gradient, m, q, v = Room(numbers(8)), Room(4 * N), Room(4 * N), Room(4 * N)
    how = (0.5, 0.9, 0.1, 0.99, 0.01, 1.1, 1e-8, 0.3)
    for _ in range(3):
        core.adam(number, 0, gradient.at, m.at, q.at, v.at, N, how)
    yield "adam", bytes(m.bytes + q.bytes + v.bytes)
    core.undo_adam(number, 0, gradient.at, m.at, q.at, v.at, N, how)
    yield "undo adam", bytes(m.bytes + q.bytes + v.bytes)
    u, w = Room(numbers(9)), Room(numbers(10))
    core.undo(number, 0, gradient.at, u.at, w.at, N, 2, 0.9, 0.5)
    yield "undo", bytes(u.bytes + w.bytes)


def codes(core: Any, number: int) -> Iterator[tuple[str, bytes]]:
    for form in FORMATS:
        x, written, scales = Room(numbers(11)), Room(8 * N), Room(4 * N)
        given = GIVEN.get(form, 0.0)
        if given:
            scales.bytes[:4] = struct.pack("f", given)
        core.encode(number, form, 0, x.at, N, DICE, given, written.at, scales.at, False)
        yield f"encode {form}", bytes(written.bytes + scales.bytes)
        v = Room(numbers(12))
        core.add_codes(number, form, v.at, N, written.at, scales.at, 0.7)
        yield f"decode {form}", bytes(v.bytes)
        for kind in (0, 1, 2):
            out, both = Room(4 * N), [(written.at, scales.at)] * 3
            core.accumulate_codes(number, [(form, kind, out.at, N, both, 0, 1e30, 3.0, False)])
            yield f"sum {form} as {kind}", bytes(out.bytes)
        u, v, gradient = Room(4 * N), Room(numbers(13)), Room(numbers(14))
        state = (gradient.at, u.at, v.at, N)
        row = (form, 0, *state, (1, 0.9, 0.5), DICE, written.at, scales.at, 0.0, 0)
        if not given:
            core.update_codes(number, [row])
            yield f"update {form}", bytes(u.bytes + v.bytes + written.bytes + scales.bytes)


def signs(core: Any, number: int) -> Iterator[tuple[str, bytes]]:
    x, bits, v = Room(numbers(15)), Room(N), Room(4 * N)
    values = Room(struct.pack("2f", -0.3, 0.4))
    for throws in (False, True):
        found = core.pack_signs(number, 0, x.at, N, DICE, throws, bits.at)
        yield f"signs, dice {throws}", bytes(bits.bytes) + repr(found).encode()
    core.add_signs(number, v.at, N, bits.at, values.at, 2, 0.7)
    yield "add signs", bytes(v.bytes)
    many = [(bits.at, values.at, count) for count in (0, 1, 2)]
    core.accumulate_signs(number, 0, v.at, N, many, 3.0, False)
    yield "sum signs", bytes(v.bytes)
    yield "largest", repr(core.largest(number, 0, x.at, N, True)).encode()
    core.noise(number, DICE, 17, N, v.at)
    yield "dice", bytes(v.bytes)
    drawn = Room(4 * 100)
    core.strata(number, DICE, N, 100, drawn.at)
    yield "strata", bytes(drawn.bytes)


def lists(core: Any, number: int) -> Iterator[tuple[str, bytes]]:
    n = 200_000
    for k in (50, 3000, 60_000):
        index, value = Room(places(k, k, n)), Room(numbers(k, k))
        out = Room(4 * n)
        for kind in (0, 1, 2):
            core.accumulate(number, kind, out.at, n, [(index.at, value.at, k, 0)] * 2, 3.0, False)
            yield f"sum of {k} as {kind}", bytes(out.bytes)
        low = (n // k).bit_length() - 1
        sizes = {3: (k * low + 7) // 8 + (k + (n - 1 >> low) + 7) // 8, 4: (n + 7) // 8}
        for code, size in sizes.items():  # elias_fano, bitmap
            section = Room(size)
            core.encode_indices(code, n, k, index.at, section.at, size)
            back = Room(4 * k + 64)
            count = core.decode_indices(number, code, n, k, section.at, size, back.at)
            yield f"places {k}, code {code}", bytes(back.bytes[: 4 * k]) + str(count).encode()
        at, values = Room(4 * k + 64), Room(4 * k + 64)
        cut = core.split(number, (index.at, value.at, k, 0), 4, 99, at.at, values.at)
        yield f"split {k}", bytes(at.bytes[: 4 * k] + values.bytes[: 4 * k]) + repr(cut).encode()
        twice = Room(8 * k + 64), Room(8 * k + 64)
        some = core.merge(
            number, [(index.at, value.at, k, 0)] * 2, n, 2.0, 0, twice[0].at, twice[1].at
        )
        yield f"merge {k}", bytes(twice[0].bytes[: 4 * some] + twice[1].bytes[: 4 * some])


def widths(core: Any, number: int) -> Iterator[tuple[str, bytes]]:
    """Elias-Fano lists whose numbers have each width of lower bits."""
    k, code = 300, 3
    for low in range(1, 23):
        n = k << low
        index, size = Room(places(low, k, n)), (k * low + 7) // 8 + (2 * k + 7) // 8
        section, back = Room(size), Room(4 * k + 64)
        core.encode_indices(code, n, k, index.at, section.at, size)
        count = core.decode_indices(number, code, n, k, section.at, size, back.at)
        yield f"places with {low} lower bits", bytes(back.bytes[: 4 * k]) + str(count).encode()


FAMILIES = (casts, selections, codes, signs, lists, widths)


def digests(core: Any) -> dict[str, dict[str, str]]:
    """Returns the digest of each kernel's results, for each instruction set."""
    return {
        name: {
            what: hashlib.sha256(result).hexdigest()[:16]
            for family in FAMILIES
            for what, result in family(core, number)
        }
        for number, name in enumerate(core.instruction_sets())
    }


def text_of(found: dict[str, str]) -> str:
    return "".join(f"{digest} {what}\n" for what, digest in found.items())


def loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("gradwire._native", path)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core


def main(path: str, *options: str) -> int:
    found = digests(loaded(path))
    if options:
        GOLDEN.write_text(text_of(found["plain"]), encoding="utf-8")
    wanted = GOLDEN.read_text(encoding="utf-8").splitlines()
    status = 0
    for name, own in found.items():
        other = [f"{d} {what}" for what, d in own.items() if f"{d} {what}" not in wanted]
        print(f"{name}: {len(own) - len(other)} of {len(own)} results have the same bits", *other)
        status |= bool(other) or len(own) != len(wanted)
    return int(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
