"""Compiles every kernel of the CUDA room without a device, as a program of its own: the
interpreter takes the place of the compiler where TRITON_INTERPRET is set.

Prints a row for each: architecture, kernel, constants, registers, bytes spilled, wide loads, and
fused multiply-adds and flushes to zero, of which there must be none.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradwire.kernels import formats
from gradwire.kernels.cuda import (
    adam_steps,
    candidates,
    clips,
    codes,
    dense,
    entries,
    held,
    kept,
    lists,
    noise,
    powers,
    radix,
    reached,
    signs,
    small,
    sparse,
    sums,
    ternary,
    undo,
)
from gradwire.kernels.cuda.columns import BLOCK, ITEMS
from gradwire.kernels.cuda.formats import written
from gradwire.kernels.cuda.selection import CHUNK, SPAN, registers_of, warps_of

TYPES = {
    **dict.fromkeys(
        ["above", "bad", "begins", "blocks", "counts", "equal", "found", "hints"], "*i32"
    ),
    **dict.fromkeys(["bins", "exacts", "spans", "wholes", "words"], "*i32"),
    **dict.fromkeys(["indices", "magnitudes", "places", "state", "table", "which"], "*i32"),
    **dict.fromkeys(["rows", "payloads", "lists", "headers", "status"], "*i64"),
    **dict.fromkeys(["bits", "ends", "section"], "*u8"),
    **dict.fromkeys(["kept", "u", "v", "values", "total"], "*fp32"),
    **dict.fromkeys(["source", "x", "out", "target"], "*fp32"),
    **dict.fromkeys(["n", "k", "count", "number_of", "all_of", "first", "width", "size"], "i32"),
    **dict.fromkeys(["dice1", "dice2", "dice3", "magic", "digest", "step"], "i64"),
    **dict.fromkeys(["m", "s", "d", "by", "factor"], "fp32"),
    "sums": "*fp64",
}
"""The types of arguments, by name."""
FOUR = (
    candidates.compact, clips.squares, signs.pack, signs.add_signs_up, ternary.pack_digits,
    ternary.add_digits_up,
)  # fmt: skip
SIXTEEN = candidates.scan, radix.digit, radix.count, radix.emit, small.choose
WARPS = dict.fromkeys(FOUR, 4) | dict.fromkeys(SIXTEEN, 16)
"""The number of warps of these kernels; all others have 8."""
OF_DTYPE = {"fp32": "*fp32", "bf16": "*bf16", "fp16": "*fp16"}


def kernels(every: bool) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields each kernel with its constants; every: with all formats, dtypes and recurrences."""
    sizes = {"ITEMS": ITEMS, "BLOCK": BLOCK}
    packs = {"aligned": True, "R": signs.TOGETHER, "LEVELS": 3}
    dtypes = [tl.bfloat16, *([tl.float32, tl.float16] if every else [])]
    for dtype in dtypes:
        for mode in range(4) if every else (0, 1):
            yield candidates.mark, {
                "dtype": dtype, "mode": mode, "marks": True, "aligned": True, "BLOCK": BLOCK,
                "SPAN": SPAN,
            }  # fmt: skip
            yield small.choose, {
                "dtype": dtype, "mode": mode, "masks": mode in (1, 2), "aligned": True,
                "BLOCK": BLOCK,
            }  # fmt: skip
        for undoes in (True, False):
            yield adam_steps.step_all, {
                "dtype": dtype, "undoes": undoes, "aligned": True, "BLOCK": adam_steps.BLOCK,
            }  # fmt: skip
        for mode in range(3) if every else (2,):
            yield undo.inverted, {"dtype": dtype, "mode": mode, "aligned": True, "BLOCK": BLOCK}
        if every:  # selected from as they are
            yield candidates.compact, {"dtype": dtype, "BLOCK": BLOCK, "SPAN": SPAN}
            yield radix.digit, {"dtype": dtype, "step": 0, **sizes}
            yield radix.count, {"dtype": dtype, **sizes, "CHUNK": ITEMS}
            yield radix.emit, {"dtype": dtype, "mode": 3, "masks": False, **sizes}
            for number, divides in ((0, True), (1, False), (2, True)):
                of = {"dtype": dtype, "of": number, "divides": divides, "aligned": True}
                yield signs.add_signs_up, {**of, "TILE": signs.TILE}
                yield signs.pack, {**packs, "dtype": dtype, "throws": divides}
    of_v = {"dtype": tl.float32}
    took = {**of_v, "mode": 1, "masks": True}
    yield candidates.scan, {"CHUNK": CHUNK}
    yield candidates.compact, {**of_v, "BLOCK": BLOCK, "SPAN": SPAN}
    for step in range(4) if every else (0, 1, 3):
        yield radix.digit, {**of_v, "step": step, **sizes}
    yield radix.count, {**of_v, **sizes, "CHUNK": ITEMS}
    yield radix.emit, {**took, **sizes}
    yield undo.restore, {"BLOCK": undo.ENTRIES}
    yield kept.put_back, {"aligned": True, "BLOCK": BLOCK}
    names = ("INT8", "E4M3", "E5M2", "LEVELS2", "LEVELS4", "LEVELS8", "LLOYD1", "LLOYD2")
    few = {"INT8": 0, "E4M3": 4, "LEVELS4": 4, "LLOYD2": 0}  # which of them in which mode
    for name in names if every else few:
        form = written(getattr(formats, name))
        assert form is not None
        of = {"way": form.way, "bits": form.bits, "steps": form.steps, "B": form.block,
              "aligned": True, "dtype": tl.float32}  # fmt: skip
        rows, columns = codes.shape_of(form)
        for mode in (0, 1, 3, 4) if every else (few[name],):
            yield codes.encode, {**of, "R": rows, "C": columns, "mode": mode}
            if every:
                anywhere = {"R": rows, "C": columns, "aligned": False, "dtype": tl.bfloat16}
                yield codes.encode, {**of, **anywhere, "mode": mode}
        many = {"R": sums.TILE // form.block, "AT_ONCE": sums.AT_ONCE, "full": True,
                "TURNS": sums.TURNS}  # fmt: skip
        yield sums.add_codes_up, {**of, **many, "divides": True}
        if every:
            for dtype in (tl.float32, tl.bfloat16):
                one = {**many, "AT_ONCE": 1, "dtype": dtype, "divides": False}
                yield sums.add_codes_up, {**of, **one}
                yield sums.add_codes_up, {**of, **one, "divides": True, "full": False}
                yield sums.add_codes_up, {**of, **one, "aligned": False}
        step = {"AT_ONCE": sums.AT_ONCE, "full": False}
        yield sums.scales_are_good, {"CHUNK": sums.CHUNK, **step}
    yield signs.pack, {**packs, **of_v, "throws": True}
    yield signs.stand_for, {"of": 2, "SPAN": clips.span(), "CHUNK": signs.CHUNK, "LEVELS": 12}
    signs_up = {**of_v, "of": 1, "divides": True, "aligned": True, "TILE": signs.TILE}
    yield signs.add_signs_up, signs_up
    for dtype in (tl.float32, tl.bfloat16, tl.float16) if every else (tl.float32,):
        four = {"dtype": dtype, "aligned": True, "R": powers.TOGETHER}
        yield powers.encode_powers, four
        yield powers.add_powers_up, {**four, "divides": True}
        yield ternary.top_of_all, {"dtype": dtype, "aligned": True, "TILE": ternary.TILE}
        yield clips.squares, {**packs, "dtype": dtype}
        yield ternary.pack_digits, {"dtype": dtype, "R": ternary.TOGETHER}
        for divides in (True, False) if every else (True,):
            four = {"dtype": dtype, "aligned": True, "R": ternary.TOGETHER}
            yield ternary.add_digits_up, {**four, "divides": divides}
    yield ternary.begin_at_zero, {}
    yield clips.cut, {"SPAN": clips.span(), "CHUNK": clips.CHUNK, "LEVELS": 12}
    for dtype in (tl.float32, tl.bfloat16, tl.float16) if every else (tl.float32,):
        for kernel in (reached.count, reached.write):
            yield kernel, {"dtype": dtype, "aligned": True, "BLOCK": reached.BLOCK}
    yield reached.offsets, {"CHUNK": reached.CHUNK}
    yield sparse.violation, {"BLOCK": sparse.CHUNK}
    yield sparse.add_list, {"BLOCK": sparse.CHUNK}
    yield sparse.find_begins, {"TILE": 8192, "BLOCK": sparse.BLOCK}
    for dtype in (tl.float32, tl.bfloat16):
        for R, (tile, few) in (
            itertools.product((4, 8, 16), sparse.TILES) if every else [(8, sparse.TILES[0])]
        ):
            yield sparse.add_lists, {
                "dtype": dtype, "of_values": tl.float32, "aligned": True, "TILE": tile,
                "PART": sparse.PART, "CHUNK": sparse.CHUNK, "R": R, "C": few,
            }  # fmt: skip
    for of in (tl.uint8, tl.uint16) if every else (tl.uint8,):
        gaps = {"kind": 1, "of": of, "BLOCK": lists.BLOCK}
        yield lists.count, gaps
        yield lists.emit, gaps
        yield entries.set_gaps, {"of": of, "CHUNK": entries.CHUNK}
    ones = {"kind": 0, "of": tl.uint8, "BLOCK": lists.BLOCK}
    yield lists.count, ones
    yield lists.emit, ones
    yield lists.before, {"kind": 1, "CHUNK": lists.CHUNK}
    for kernel in (lists.check, entries.set_ones):
        yield kernel, {"BLOCK": lists.BLOCK}
    for dtype in (tl.float32, tl.bfloat16) if every else (tl.bfloat16,):
        yield entries.spread, {"dtype": dtype, "BLOCK": entries.BLOCK}
    for to in (tl.float32, tl.bfloat16, tl.float16) if every else (tl.bfloat16,):
        of = {"of": tl.float32, "to": to, "aligned": True, "BLOCK": dense.BLOCK}
        yield dense.cast_all, {**of, "checks": to == tl.float32}
    yield dense.zero_if, {"to": tl.bfloat16, "BLOCK": dense.BLOCK}
    yield dense.add_scaled, {"BLOCK": dense.BLOCK}
    yield dense.difference, {"BLOCK": dense.BLOCK}
    yield dense.look, {"BLOCK": dense.BLOCK}
    yield dense.spoil, {**of_v, "BLOCK": dense.BLOCK}
    yield dense.add_dense, {**of_v, "of_values": tl.float32, "aligned": True, "BLOCK": dense.BLOCK}
    yield dense.judge_all, {"ROWS": 8}
    yield noise.thrown, {"BLOCK": noise.BLOCK}
    for kernel in (held.hold_all, held.tell_all):
        yield kernel, {"CHUNK": held.CHUNK}


def compiled(kernel: Any, constants: dict[str, Any], capability: int) -> Any:
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else TYPES.get(name) for name in names}
    if "g" in types:
        types["g"] = OF_DTYPE[str(constants["dtype"])]
    if kernel in (lists.count, lists.before, lists.emit):
        types["sums"] = "*i64"
    for name, of in types.items():
        assert of is not None, f"{kernel.__name__}'s {name} has no type here"
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if str(types[name]).startswith("*")
    }
    source = ASTSource(
        fn=kernel, signature=types, attrs=aligned,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )  # fmt: skip
    warps = _warps(kernel, constants)
    most = registers_of(constants["mode"]) if kernel is candidates.mark else None
    options = {"enable_fp_fusion": False, "num_warps": warps, "maxnreg": most}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _warps(kernel: Any, constants: dict[str, Any]) -> int:
    """The number of warps with which the room launches this kernel."""
    if kernel is sparse.add_lists and "C" in constants:
        return sparse.warps_of(constants["R"], constants["C"])
    if kernel is codes.encode and constants["bits"] < 8:
        return 4
    if kernel is candidates.mark:
        return warps_of(constants["mode"])
    if kernel is sums.add_codes_up:
        return int(min(4, 2 * constants["bits"]))
    return WARPS.get(kernel, 8)


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, bytes of stack, and bytes of local memory, to which registers are spilled."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name: int(n) for name, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}


def main(capabilities: list[int], every: bool) -> None:
    for capability in capabilities:
        for kernel, constants in kernels(every):
            made = compiled(kernel, constants, capability)
            ptx = made.asm["ptx"]
            print(json.dumps({
                "capability": capability, "kernel": kernel.__name__,
                "constants": {name: str(value) for name, value in constants.items()},
                **resources(made.asm["cubin"]), "shared": made.metadata.shared,
                "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)), "flushed": ptx.count(".ftz"),
                "wide": ptx.count("ld.global.v4"), "divided": ptx.count("div.full"),
            }))  # fmt: skip


if __name__ == "__main__":
    main([int(given) for given in sys.argv[1:] if given != "every"], "every" in sys.argv)
