"""One record of spans, for predicted, simulated and measured runs alike."""

from __future__ import annotations

import pytest

from gradwire.trace import Span, Trace


def sample() -> Trace:
    trace = Trace(3)
    trace.add(Span(0, 0, "encode", "b0", 0.0, 0.5))
    trace.add(Span(0, 0, "wire", "b0 all_gather", 0.5, 2.0, bytes=100))
    trace.add(Span(2, 1, "wire", "b1 all_reduce", 1.0, 1.25, bytes=7.5))
    trace.add(Span(0, 0, "wire", "b1 all_gather", 2.0, 2.5, bytes=50))
    trace.add(Span(0, 0, "decode", "b1", 2.5, 3.0, bytes=999))
    return trace


def test_bytes_sent_counts_the_wire_of_every_rank_and_nothing_else() -> None:
    assert sample().bytes_sent == [150.0, 0.0, 7.5]


def test_seconds_adds_one_kind() -> None:
    trace = sample()
    assert trace.seconds("wire") == pytest.approx(1.5 + 0.25 + 0.5)
    assert trace.seconds("encode") == pytest.approx(0.5)
    assert trace.seconds("wait") == 0


def test_of_keeps_the_order_of_recording() -> None:
    assert [span.label for span in sample().of("wire")] == [
        "b0 all_gather",
        "b1 all_reduce",
        "b1 all_gather",
    ]


def test_a_span_without_times_took_no_time() -> None:
    assert Span(0, 0, "wire", "all_gather", bytes=4).seconds == 0.0


def test_traces_do_not_share_spans() -> None:
    one, other = Trace(1), Trace(1)
    one.add(Span(0, 0, "wait", "b0"))
    assert other.spans == []


def test_the_busiest_rank_of_every_move_counts() -> None:
    """The first move counts what rank 1 receives, the second what rank 0 sends."""
    trace = Trace(2)
    trace.add(Span(0, 0, "wire", "exchange", bytes=5, received=4))
    trace.add(Span(1, 0, "wire", "exchange", bytes=4, received=9))
    trace.add(Span(0, 0, "wire", "exchange", bytes=7))
    trace.add(Span(0, 0, "encode", "", bytes=100))
    assert trace.busiest_bytes == 9 + 7
    assert Trace(3).busiest_bytes == 0
