"""The members under contract, each with a few parameter sets, and what they cost by hand.

A member that a family exports and that has no instance here fails `test_tables.py`.
n: elements of a parameter. world: ranks. b: bytes of one rank's contribution.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.collectives import (
    DSAR,
    THC,
    AllGatherSum,
    AllReduceSum,
    AllToAllSum,
    Columns,
    GTopK,
    Hierarchical,
    MajorityVote,
    Offload,
    OkTopk,
    OmniReduce,
    PowerSGD,
    Recode,
    SparCML,
    SparCMLSplit,
    SparseAuto,
    SparsePS,
    Steps,
    Union,
    Zen,
)
from gradwire.compressors import (
    QSGD,
    BFloat16,
    ErrorBounded,
    Float8,
    Float16,
    Identity,
    Int8,
    Lloyd,
    Microscaling,
    Natural,
    NonZero,
    OneBit,
    RandK,
    Sign,
    TernGrad,
    Threshold,
    TopK,
)
from gradwire.errors import StrategyError
from gradwire.feedback import (
    EF21,
    Adam,
    ErrorFeedback,
    Momentum,
    MomentumCorrection,
    Muon,
    ServerAdam,
    ServerMomentum,
    SharedMomentum,
)
from gradwire.strategy import Collective, Compressor, Feedback

COMPRESSORS: tuple[Compressor, ...] = (
    Identity(),
    Float16(),
    BFloat16(),
    Int8(),
    Float8(),
    Float8("e5m2"),
    *(Microscaling(variant) for variant in ("e2m1", "e3m2", "e2m3", "e4m3")),
    QSGD(2),
    QSGD(4),
    QSGD(8),
    Natural(),
    TernGrad(),
    TernGrad(clip=2.5),
    Sign(),
    Sign(scaled=True),
    OneBit(),
    Lloyd(1),
    Lloyd(2),
    Lloyd(2, turns=3),
    RandK(0.1),
    RandK(0.3, scale=True),
    RandK(1.0),
    Threshold(0.5),
    NonZero(),
    NonZero(index="int32"),
    ErrorBounded(1e-3),
    ErrorBounded(0.05),
    TopK(0.001),
    TopK(0.1),
    TopK(0.5),
    TopK(1.0),
    TopK(0.1, values="bf16"),
    TopK(0.1, values="fp16"),
    *(TopK(0.1, index=code) for code in ("int32", "gap16", "gap8", "elias_fano", "bitmap")),
)
REMEMBERED = tuple(c for c in COMPRESSORS if getattr(c, "index", "auto") == "auto")
"""The compressors that are tried with every feedback, which never sees how places are written."""
FEEDBACK: tuple[Feedback, ...] = (
    ErrorFeedback(),
    ErrorFeedback(decay=0.9),
    *(
        MomentumCorrection(momentum, nesterov, mask)
        for momentum in (0.9, 0.0)
        for nesterov in (False, True)
        for mask in (True, False)
    ),
    EF21(),
    EF21(0.9),
    SharedMomentum(0.9),
    Adam(),
    Muon(),
    ServerAdam(),
    Momentum(0.9),
    Momentum(0.0),
    ServerMomentum(0.9),
    ServerMomentum(0.5, nesterov=True),
)
COLLECTIVES: tuple[Collective, ...] = (
    AllReduceSum(), AllGatherSum(), AllToAllSum(), MajorityVote(), PowerSGD(2), THC(4),
    Recode("int8"), GTopK(), GTopK(variant="butterfly"), GTopK(variant="tree"), SparCML(),
    SparCMLSplit(), DSAR(), SparsePS(), OmniReduce(), Union(),
    Zen(), Zen(variant="paper"), OkTopk(), Columns(), SparseAuto(every=2),
    Hierarchical(), Offload(),
    Steps("compress@gpu, all_to_all, decompress@gpu, compress@cpu, all_gather, decompress@cpu"),
)  # fmt: skip
ON_STREAMS = (
    GTopK, SparCML, SparCMLSplit, DSAR, SparsePS, OmniReduce, Union, Zen, OkTopk, Columns,
    SparseAuto, Hierarchical,
)  # fmt: skip
"""Collectives that get entries and see neither how these were written nor what was remembered of
them: each is tried with a few compressors and feedbacks. What they send depends on the data.
(Hierarchical's outer member does the one, a spoiled step the other.)"""
FEEDBACK_OF_STREAMS = (None, ErrorFeedback(), MomentumCorrection(0.9), EF21(), ServerMomentum(0.9))
WORLDS = (1, 2, 3, 5, 8)

# -- by hand, not by claims --------------------------------------------------------------------

SECTION_BYTES: dict[str, Callable[[Compressor, int, int], tuple[int, ...]]] = {
    "none": lambda c, n, item: (item * n,),
    "fp16": lambda c, n, item: (2 * n,),
    "bf16": lambda c, n, item: (2 * n,),
    "int8": lambda c, n, item: (4 * blocks(n, 256), n),
    "fp8": lambda c, n, item: (4 * blocks(n, 256), n),
    "mx": lambda c, n, item: (0, mx_bytes(c.variant, n)),  # type: ignore[attr-defined]
    "qsgd": lambda c, n, item: (4 * blocks(n, 512), blocks(n * c.bits, 8)),  # type: ignore
    "natural": lambda c, n, item: (n + blocks(n, 8),),
    "terngrad": lambda c, n, item: (4 * min(n, 1), blocks(n, 5)),
    "sign": lambda c, n, item: (4 * min(n, int(c.scaled)), blocks(n, 8)),  # type: ignore[attr-defined]
    "onebit": lambda c, n, item: (8 * min(n, 1), blocks(n, 8)),
    "lloyd": lambda c, n, item: (
        4 * blocks(in_turn(c, n), 512),
        blocks(c.bits * in_turn(c, n), 8),  # type: ignore
    ),
    "randk": lambda c, n, item: (4 * sent_by_topk(c, n),),
    "threshold": lambda c, n, item: (16 + 16 * blocks(n, 128) + 4 * n,),
    "nonzero": lambda c, n, item: (
        16 + (16 * blocks(n, 128) if c.index == "auto" else 16 * blocks(n, 4)) + 4 * n,  # type: ignore
    ),
    "eb": lambda c, n, item: (eb_bytes(c.bound, n),),  # type: ignore[attr-defined]
    "topk": lambda c, n, item: topk_bytes(c, n),
}
"""The bytes of each section of a payload, or of the longest; item: bytes of a gradient element."""


def payload(compressor: Compressor, n: int, item: int) -> int:
    """The bytes of one payload, or of the longest."""
    return sum(SECTION_BYTES[compressor.name](compressor, n, item))


def mx_bytes(variant: str, n: int) -> int:
    """A byte for each 32 elements; codes by 256: 4 bits take half a byte each, 2 a quarter."""
    widths = {"e2m1": (2,), "e3m2": (2, 4), "e2m3": (2, 4), "e4m3": (1,)}[variant]
    whole, rest = divmod(n, 256)
    sizes = [256] * whole + [rest]
    return sum(blocks(m, 32) + sum(blocks(m, to_a_byte) for to_a_byte in widths) for m in sizes)


def eb_bytes(bound: float, n: int) -> int:
    """The longest payload: all elements at the last level below 0, whose number is twice its
    magnitude, in blocks of 65,536."""
    each = 2 * math.ceil(1 / (2 * bound) * (1 + 2**-21 / bound)) + 1
    sizes = [65536] * (n // 65536) + [n % 65536] * (n % 65536 > 0)
    codes = sum(16 * blocks(elias_fano_bytes(m * each, m) + 2, 16) for m in sizes)
    return 16 + 16 * blocks(4 * len(sizes), 16) + codes


def blocks(n: int, size: int) -> int:
    return -(-n // size)


def in_turn(compressor: Compressor, n: int) -> int:
    """The number of elements in lloyd's longest part."""
    turns = compressor.turns  # type: ignore[attr-defined]
    return min(n, 512 * blocks(blocks(n, 512), turns))


# Bytes of k places among n, by how they are written.
PLACES: dict[str, Callable[[int, int], int]] = {
    "int32": lambda n, k: 4 * k,
    "gap16": lambda n, k: 2 * (k + (n - k) // 65535) if k else 0,
    "gap8": lambda n, k: k + (n - k) // 255 if k else 0,
    "elias_fano": lambda n, k: elias_fano_bytes(n, k) if k else 0,
    "bitmap": lambda n, k: blocks(n, 8),
}


def elias_fano_bytes(n: int, k: int) -> int:
    low = (n // k).bit_length() - 1
    return blocks(k * low, 8) + blocks(k + ((n - 1) >> low), 8)


def sent_by_topk(compressor: Compressor, n: int) -> int:
    """The number k of entries that topk sends of n elements."""
    return min(n, math.ceil(compressor.density * n))  # type: ignore[attr-defined]


def topk_bytes(compressor: Compressor, n: int) -> tuple[int, int]:
    k, index = sent_by_topk(compressor, n), compressor.index  # type: ignore[attr-defined]
    places = {code: size(n, k) for code, size in PLACES.items()}
    each = 4 if compressor.values == "fp32" else 2  # type: ignore[attr-defined]
    return (min(places.values()) if index == "auto" else places[index]), each * k


def message_bytes(*sections: int) -> int:
    """The bytes of a message: a header of 32, and each section padded to a multiple of 16."""
    return 32 + sum(16 * blocks(size, 16) for size in sections)


def message(c: Compressor, n: int, item: int) -> int:
    return message_bytes(*SECTION_BYTES[c.name](c, n, item))


BYTES_SENT: dict[str, Callable[[Compressor, int, int, int], list[float]]] = {
    "allreduce": lambda c, world, n, item: [2 * (world - 1) / world * payload(c, n, item)] * world,
    "allgather": lambda c, world, n, item: [(world - 1) * message(c, n, item)] * world,
    "alltoall": lambda c, world, n, item: to_owners_and_back(c, world, n, item),
    "vote": lambda c, world, n, item: to_owners_and_back(c, world, n, item),
    "offload": lambda c, world, n, item: BYTES_SENT["allgather"](c, world, n, item),
    "steps": lambda c, world, n, item: to_owners_and_back(c, world, n, item),
    "powersgd": lambda c, world, n, item: [2 * (world - 1) / world * 4 * n] * world,  # a vector
    "thc": lambda c, world, n, item: (
        [(world - 1) * 4 * (blocks(n, 1024) + 2 / world * thc_words(world, n))] * world
    ),
    "recode": lambda c, world, n, item: [recode_bytes(r, world, n) for r in range(world)],
}
"""The bytes that each of `world` ranks sends for a vector of n elements."""


def recode_bytes(rank: int, world: int, n: int) -> float:
    """The bytes that a rank sends with int8, whose message begins with 16 bytes. A guest sends all
    to its host; others send half of what they hold, again and again, then the sums of one owner,
    two, four; and a host sends all of them to its guest."""
    core = 1 << world.bit_length() - 1
    size = 64 * blocks(n, 64 * core)

    def coded(begin: int, end: int) -> int:
        m = min(n, end * size) - min(n, begin * size)
        return 16 + 16 * (blocks(4 * blocks(m, 256), 16) + blocks(m, 16))

    if rank >= core:
        return coded(0, core)
    total, span = 0, core
    while span > 1:
        span //= 2
        other = rank // span * span ^ span
        own = rank // span * span
        total += coded(other, other + span)
        total += sum(coded(r, r + 1) for r in range(own, own + span))
    if rank + core < world:
        total += sum(coded(r, r + 1) for r in range(core))
    return total


def thc_words(world: int, n: int) -> int:
    """The number of 32-bit words. A sum of codes from -7 to 7 takes its bits and a sign's."""
    return blocks(1024 * blocks(n, 1024), 32 // (1 + math.ceil(math.log2(7 * world + 1))))


def to_owners_and_back(c: Compressor, world: int, n: int, item: int) -> list[float]:
    """The bytes that each rank sends: pieces of whole 64s to their owners, the first of which
    follows from the name "x", and averages back."""
    size = 64 * blocks(n, 64 * world)
    pieces = [max(0, min(size, n - j * size)) for j in range(world)]
    first = zlib.crc32(b"x") % world
    owned = [message(c, pieces[(r - first) % world], item) for r in range(world)]
    return [float(sum(owned) - own + (world - 1) * max(owned)) for own in owned]


# Inputs that a compressor returns exactly: its own class.
OWN_CLASS: dict[str, Callable[[Compressor, Tensor], Tensor]] = {
    "none": lambda c, x: x,
    "fp16": lambda c, x: x.half().to(x.dtype),
    "bf16": lambda c, x: x.bfloat16().to(x.dtype),
    "int8": lambda c, x: on_grid(x, 127),
    "fp8": lambda c, x: on_grid(x, 7),  # three significant bits, and 7 · 2^k is the largest value
    "mx": lambda c, x: on_grid(x, 4),  # all of these formats have 0 to 4
    "qsgd": lambda c, x: on_grid(x, 2 ** (c.bits - 1) - 1),  # type: ignore[attr-defined]
    "natural": lambda c, x: torch.sign(x) * 2.0 ** (x.float().abs() * 3).round().to(x.dtype),
    "terngrad": lambda c, x: torch.sign(x) if c.clip is None else torch.zeros_like(x),  # type: ignore[attr-defined]
    "sign": lambda c, x: torch.where(x < 0, -1.0, 1.0).to(x.dtype),
    "onebit": lambda c, x: torch.where(x < 0, -2.0, 0.5).to(x.dtype),
    "lloyd": lambda c, x: torch.where(x < 0, -1.0, 1.0).to(x.dtype) * (c.bits == 1),  # type: ignore
    "randk": lambda c, x: x if c.density == 1 else torch.zeros_like(x),  # type: ignore
    "threshold": lambda c, x: torch.where(x.abs() < c.value, 0, x).to(x.dtype),  # type: ignore
    "nonzero": lambda c, x: x,
    "eb": lambda c, x: on_grid(x, c.top),  # type: ignore[attr-defined]
    "topk": lambda c, x: k_sparse(in_format(x, c.values), sent_by_topk(c, len(x))),  # type: ignore
}


def on_grid(x: Tensor, top: int) -> Tensor:
    """Whole numbers up to top; the first of every 256 is top, so that every scale is 1."""
    whole = (x.float() * top / 3).round().clamp(-top, top)
    whole[::256] = top
    return whole.to(x.dtype)


def in_format(x: Tensor, values: str) -> Tensor:
    """x, rounded to "fp32", "bf16" or "fp16"."""
    short = {"fp32": x.dtype, "bf16": torch.bfloat16, "fp16": torch.float16}[values]
    return x.to(short).to(x.dtype)


def k_sparse(x: Tensor, k: int) -> Tensor:
    """x with all but k random elements set to zero."""
    kept = torch.randperm(len(x), generator=torch.Generator().manual_seed(len(x)))[:k]
    return torch.zeros_like(x).index_copy(0, kept, x[kept])


def strategies(feedback: tuple[Feedback | None, ...] = (None, *FEEDBACK)) -> list[Strategy]:
    """Every combination that is not refused."""
    made = []
    for compressor in COMPRESSORS:
        for memory in feedback:
            if memory is not None and compressor not in REMEMBERED:
                continue
            for collective in COLLECTIVES:
                few = compressor in REMEMBERED and memory in FEEDBACK_OF_STREAMS
                if isinstance(collective, ON_STREAMS) and not few:
                    continue
                try:
                    made.append(Strategy(compressor, collective, memory))
                except StrategyError:
                    continue
    return made


def ids(members: object) -> str:
    """Members and strategies are their own test ids."""
    return str(members)
