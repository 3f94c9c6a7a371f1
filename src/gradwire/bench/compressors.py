"""Encoding and decoding against the bytes that must move.

    limit = bytes that must move / bandwidth of a streaming copy, measured between the rows

One thread, fp32. Encoding is one step of training in the steady state: the encoder that the
runtime would take, its state in huge pages, its sections in a message. Decoding is the sum of
the payloads of several ranks, written over one gradient. The bytes are those of `traffic`.

All rows take turns, each after a copy that empties the caches. Gradients rotate. The payloads of
the row at work lie in one pool, sized for the largest, which all rows share and fill anew. Memory:
with 8 payloads 70 bytes per element, and 4 for each tensor of state, which lasts; 2.5 GB in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gradwire.bench.machine import ELEMENTS, native, say
from gradwire.bench.traffic import decode_bytes, encode_bytes, payload_bytes
from gradwire.errors import StrategyError
from gradwire.progress import Progress, each, part, silent

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.strategy import Compressor, Sections, Strategy

DECODE_TARGET = 2.0
SPARSE_SHARE = 0.01  # of elements are not zero, for compressors that send just these


def strategies(texts: Sequence[str] = ()) -> list[Strategy]:
    """Returns the strategies of these texts, `| allgather` if they name no collective; without
    texts, the examples of all compressors.

    A compressor that has required parameters and no example is left out, and a line says so.
    Raises StrategyError for a wrong text.
    """
    from gradwire.families import COMPRESSORS

    if texts:
        return [_parse(text) for text in texts]
    found = []
    for name, member in COMPRESSORS.items():
        try:
            found += [_parse(text) for text in member.examples or (name,)]
        except StrategyError as error:
            say(f"'{name}' is left out; to measure it, pass it with its parameters. {error}")
    return found


def _parse(text: str) -> Strategy:
    from gradwire.strategy import Strategy

    return Strategy.parse(text if "|" in text else f"{text} | allgather")


def _sends_what_is_there(compressor: Compressor) -> bool:
    """Whether it sends exactly the elements that are not zero, as for sparse gradients."""
    claims = compressor.claims(1)
    return claims.entries and claims.exact


def distinct_compressors(of: Sequence[Strategy]) -> list[Compressor]:
    """Returns each compressor once."""
    return list(dict.fromkeys(strategy.compressor for strategy in of))


@dataclass
class _Job:
    """One row at work: `prepare` is not timed; `bytes` is known once the row has run."""

    name: str
    compressor: Compressor
    target: float
    sections: Sections  # of one payload
    bytes: Callable[[], list[int]]
    call: Callable[[int], object]  # gets the number of the turn
    prepare: Callable[[int], object] = lambda turn: None
    seconds: list[float] = field(default_factory=list)
    # Kept of the last turn, as the next row uses the pool.
    sent: int = 0
    moved: list[int] = field(default_factory=list)


class _Bench:
    """Tensors that all rows share: gradients, one result, one pool of messages."""

    def __init__(self, of: Sequence[Strategy], elements: int, payloads: int) -> None:
        import torch

        from gradwire.layout.message import Layout

        self.n, self.payloads = elements, payloads
        generator = torch.Generator().manual_seed(0)
        count = max(payloads, 3)
        self.gradients = [torch.randn(elements, generator=generator) for _ in range(count)]
        dice = torch.rand(elements, generator=generator)
        self.sparse = [g * (dice < SPARSE_SHARE) for g in self.gradients[:2]]
        self.out = torch.empty(elements)
        self.layouts = {c: Layout.of([c.claims(elements)]) for c in distinct_compressors(of)}
        most = max(layout.bytes for layout in self.layouts.values())
        self.pool = torch.zeros(payloads * most, dtype=torch.uint8)
        self.copies: list[float] = []
        self.reads: list[float] = []

    def gradient(self, turn: int, compressor: Compressor | None = None) -> Tensor:
        if compressor is not None and _sends_what_is_there(compressor):
            return self.sparse[turn % len(self.sparse)]
        return self.gradients[turn % len(self.gradients)]

    def sections(self, compressor: Compressor) -> list[Sections]:
        """Returns the payloads' sections, as they would lie in the buffer of an all-gather."""
        layout = self.layouts[compressor]
        whole = self.pool[: self.payloads * layout.bytes].view(self.payloads, layout.bytes)
        return [layout.views(message)[0] for message in whole]

    def references(self, turn: int) -> None:
        """Measures the memory's present rates, of reading and of copying, and so empties the
        caches."""
        from gradwire import kernels

        core, which = native()
        x = self.gradient(turn + 1)
        _time(turn, lambda: core.stream_read(which, x.data_ptr(), self.n), self.reads)
        _time(turn, lambda: kernels.cast(x, self.out), self.copies)

    def encoding(self, strategy: Strategy) -> _Job:
        from gradwire.kernels import new_status
        from gradwire.runtime.encoder import make_encoder
        from gradwire.strategy import Key, StepInfo

        status = new_status()
        compressor = strategy.compressor
        encoder = make_encoder(compressor, strategy.feedback)
        sections, state = self.sections(compressor)[0], dict[str, "Tensor"]()

        def encode(turn: int) -> None:
            encoder.encode(
                self.gradient(turn, compressor), state, sections, StepInfo(turn),
                Key(0, turn, "weight"), status,
            )  # fmt: skip

        def moved() -> list[int]:
            kept = sum(tensor.numel() for tensor in state.values())
            return encode_bytes(compressor, self.n, kept, sections)

        target = compressor.goal
        name = str(strategy).partition(" | ")[0]
        if compressor.claims(1).entries and strategy.feedback is None:
            target = math.inf  # the target is that of the pass with a feedback
        return _Job(
            name, compressor, target, sections, moved, encode, lambda turn: encoder.release()
        )

    def decoding(self, compressor: Compressor) -> _Job:
        from gradwire.kernels import new_status
        from gradwire.strategy import Key

        status = new_status()
        payloads = self.sections(compressor)

        def fill(turn: int) -> None:
            for rank, sections in enumerate(payloads):
                key = Key(0, turn, "weight", rank)
                compressor.encode(self.gradient(turn + rank, compressor), sections, key, status)

        def moved() -> list[int]:
            return decode_bytes(compressor, self.n, self.payloads, payloads[0])

        def add_up(turn: int) -> None:
            key = Key(0, turn, "weight")
            compressor.accumulate(payloads, self.out, float(self.payloads), key)

        return _Job(str(compressor), compressor, DECODE_TARGET, payloads[0], moved, add_up, fill)

    def turn(self, number: int, job: _Job) -> None:
        job.prepare(number)
        self.references(number)
        _time(number, lambda: job.call(number), job.seconds)
        job.sent = payload_bytes(job.compressor, self.n, job.sections)
        job.moved = job.bytes()

    def row(self, job: _Job) -> dict[str, Any]:
        """Returns the result of a row: one strategy's encoding, or one compressor's decoding.

        bytes: the bytes that must move; where a second pass is needed, a second number includes
        it. limits_seconds and times_limit (the median over them) have as many; the last is judged
        by the target, if the row has one (target and met are None otherwise).
        bits: of a payload, per element, and per element that it sends (None: it sends all).
        """
        seconds, bits = median(job.seconds), 8 * job.sent
        limits = [count / (8 * self.n) * median(self.copies) for count in job.moved]
        ratios = [seconds / limit for limit in limits]
        kept = job.compressor.claims(self.n).elements
        target = job.target if math.isfinite(job.target) else None
        return {
            "name": job.name,
            "seconds": seconds,
            "seconds_least": min(job.seconds),
            "seconds_most": max(job.seconds),
            "turns": len(job.seconds),
            "bytes": job.moved,
            "limits_seconds": limits,
            "times_limit": ratios,
            "target": target,
            "met": None if target is None else ratios[-1] <= target,
            "bits_per_element": bits / self.n,
            "bits_per_kept": bits / kept if kept else None,
        }


_WARM_UP = 2  # the first turn makes the state, the second meets unknown hints


def _time(turn: int, call: Callable[[], object], seconds: list[float]) -> None:
    began = perf_counter()
    call()
    if turn >= _WARM_UP:
        seconds.append(perf_counter() - began)


def measure(
    texts: Sequence[str] = (), elements: int = ELEMENTS, repeats: int = 15, payloads: int = 8,
    progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Returns every row's times and limits, as one JSON document. Raises StrategyError,
    KernelError."""
    import torch

    native()
    chosen, before = strategies(texts), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        progress("drawing gradients")
        bench = _Bench(chosen, elements, payloads)
        encode = [bench.encoding(strategy) for strategy in chosen]
        decode = [bench.decoding(compressor) for compressor in bench.layouts]
        rounds = _WARM_UP + repeats
        for number in range(rounds):
            told = part(progress, "compressors", number, rounds)
            for job in each(told, "", [*encode, *decode], lambda job: job.name):
                bench.turn(number, job)
    finally:
        torch.set_num_threads(before)
    return _document(bench, encode, decode)


def _document(bench: _Bench, encode: list[_Job], decode: list[_Job]) -> dict[str, Any]:
    import torch

    from gradwire.kernels import instruction_set

    return {
        "elements": bench.n,
        "payloads": bench.payloads,
        "instruction_set": instruction_set(),
        "torch": torch.__version__,
        "copy_bytes_per_second": 8 * bench.n / median(bench.copies),
        "copy_bytes_per_second_least": 8 * bench.n / max(bench.copies),
        "copy_bytes_per_second_most": 8 * bench.n / min(bench.copies),
        "read_bytes_per_second": 4 * bench.n / median(bench.reads),
        "encode": [bench.row(job) for job in encode],
        "decode": [bench.row(job) for job in decode],
    }
