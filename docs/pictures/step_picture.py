"""One step of all ranks as SVG: a row for the thread that trains, one for the lane, of each rank.

Spans of one bucket stand out; numbers on rank 0 say which words of the page speak of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from gradwire.trace import TRAINING_THREAD, Span, Trace

WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 880, 124, 16, 62, 20, 12
COLOURS = {
    "compute": "#a9b7c6", "backward": "#7c8ea3", "wait": "#d1495b", "encode": "#c26a00",
    "wire": "#2a7f62", "decode": "#7a4fbf",
}  # fmt: skip
"""On a light ground of the picture's own, so that it can be read on a dark page, too."""
LEGEND = {
    "compute": "data, forward, optimizer", "backward": "backward", "wait": "waits",
    "encode": "encode", "wire": "wire", "decode": "decode",
}  # fmt: skip
PALE = 0.28
"""How much is seen of the other buckets."""


def drawn(trace: Trace, bucket: int) -> str:
    """The picture of a step's spans in which one bucket, by its number, is followed."""
    zero = min(span.start_seconds for span in trace.spans)
    end = max(span.end_seconds for span in trace.spans) - zero
    scale = (WIDTH - LEFT - RIGHT) / end
    parts = [*_legend(), *_grid(end, scale, trace.world)]
    parts += [
        _box(span, LEFT + scale * (span.start_seconds - zero), scale, bucket)
        for span in trace.spans
    ]
    parts += _numbers(trace, zero, scale, bucket)
    height = _row(trace.world, TRAINING_THREAD) + 24
    told = (
        f"A step of {trace.world} ranks, {1e3 * end:.0f} milliseconds; bucket {bucket} stands out"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{told}"><style>text{{font:12px sans-serif;fill:#1c2530}}'
        ".n{font-weight:700;text-anchor:middle}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#fff"/>', *parts, "</svg>", "",
    ])  # fmt: skip


def _row(rank: int, lane: int) -> int:
    """Its upper edge."""
    return TOP + rank * (2 * ROW + GAP) + (0 if lane == TRAINING_THREAD else ROW)


def _legend() -> Iterator[str]:
    x = LEFT
    for kind, words in LEGEND.items():
        yield f'<rect x="{x}" y="12" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 17}" y="22">{words}</text>'
        x += 36 + 7 * len(words)


def _grid(end: float, scale: float, world: int) -> Iterator[str]:
    bottom = _row(world, TRAINING_THREAD) - GAP
    for rank in range(world):
        for lane, what in ((TRAINING_THREAD, "trains"), (0, "lane")):
            y = _row(rank, lane) + 14
            yield f'<text x="12" y="{y}">rank {rank}, {what}</text>'
    for tick in range(0, int(1e3 * end) + 1, 20):
        x = LEFT + scale * tick / 1e3
        yield f'<path d="M{x:.1f} {TOP - 6}V{bottom}" stroke="#e4e7ec"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick} ms</text>'


def _box(span: Span, x: float, scale: float, bucket: int) -> str:
    is_followed = span.lane == TRAINING_THREAD or span.label.startswith(f"bucket {bucket} ")
    seconds = f"{1e3 * span.seconds:.2f} ms"
    sent = f", {span.bytes:,.0f} bytes" if span.bytes else ""
    title = escape(f"rank {span.rank}, {span.label or span.kind}: {span.kind} {seconds}{sent}")
    return (
        f'<rect x="{x:.2f}" y="{_row(span.rank, span.lane) + 2}" height="{ROW - 4}" '
        f'width="{max(scale * span.seconds, 0.5):.2f}" fill="{COLOURS[span.kind]}" '
        f'opacity="{1 if is_followed else PALE}"><title>{title}</title></rect>'
    )


def _numbers(trace: Trace, zero: float, scale: float, bucket: int) -> Iterator[str]:
    """1 backward, 2 encode, 3 wire, 4 decode, 5 the wait; of rank 0."""
    own = [span for span in trace.spans if span.rank == 0]
    followed = [s for s in own if s.label.startswith(f"bucket {bucket} ")]
    spans = {s.kind: s for s in (*own, *followed)}
    for number, kind in enumerate(("backward", "encode", "wire", "decode", "wait"), 1):
        span = spans[kind]
        middle = LEFT + scale * ((span.start_seconds + span.end_seconds) / 2 - zero)
        above = _row(0, TRAINING_THREAD) - 10
        shift = {"encode": -6, "decode": 6}.get(kind, 0)  # they are next to each other
        x = middle + shift
        y = above if span.lane == TRAINING_THREAD else _row(0, 0) + ROW + 10
        yield f'<text class="n" x="{x:.1f}" y="{y}">{number}</text>'
