"""One packed message: where each section lies, and the checks of its header."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import PayloadError
from gradwire.kernels import DAMAGED, NON_FINITE
from gradwire.layout.message import HEADER_BYTES, Layout
from gradwire.runtime.message import (
    Header,
    check_headers,
    check_size,
    header_of,
)
from gradwire.strategy import Claims

DIGEST, STEP = 2**62 + 5, 7


def layout(*parameters: tuple[tuple[str, int], ...]) -> Layout:
    return Layout.of([Claims(sections) for sections in parameters])


# -- layout ------------------------------------------------------------------------------------


def test_sections_follow_one_another_after_the_header() -> None:
    laid = layout((("int32", 3), ("float32", 3)), (("int32", 1), ("float32", 1)))
    i, f = torch.int32, torch.float32
    assert laid.sections == (
        ((i, 32, 44), (f, 48, 60)),
        ((i, 64, 68), (f, 80, 84)),
    )
    assert laid.bytes == 96


def test_sections_and_the_end_are_at_multiples_of_sixteen() -> None:
    laid = layout((("uint8", 3), ("float32", 1)), (("float16", 1), ("float64", 1), ("uint8", 1)))
    assert [[(b, e) for _, b, e in p] for p in laid.sections] == [
        [(32, 35), (48, 52)],
        [(64, 66), (80, 88), (96, 97)],
    ]
    assert laid.bytes == 112


def test_an_empty_parameter_takes_no_room() -> None:
    laid = layout((("float32", 0),), (("float32", 2),))
    assert laid.bytes == 48
    assert [len(v) for (v,) in laid.views(torch.zeros(48, dtype=torch.uint8))] == [0, 2]


DTYPES = ["uint8", "float16", "bfloat16", "int32", "float32", "int64"]
SECTIONS = st.lists(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@given(SECTIONS)
def test_any_layout_is_aligned_disjoint_and_within(rows: list[list[tuple[str, int]]]) -> None:
    laid = layout(*(tuple(row) for row in rows))
    assert laid.bytes % 16 == 0
    at = HEADER_BYTES
    for row, sections in zip(rows, laid.sections):
        for (name, count), (dtype, begin, end) in zip(row, sections):
            assert dtype == getattr(torch, name)
            assert begin % 16 == 0
            assert 0 <= begin - at < 16, "no more padding than alignment needs"
            assert end - begin == count * dtype.itemsize
            at = end
    assert 0 <= laid.bytes - at < 16


@given(SECTIONS)
def test_views_share_the_memory_and_do_not_overlap(rows: list[list[tuple[str, int]]]) -> None:
    laid = layout(*(tuple(row) for row in rows))
    message = torch.zeros(laid.bytes, dtype=torch.uint8)
    for sections in laid.views(message):
        for section in sections:
            raw = section.view(torch.uint8)
            assert not raw.any(), "two sections overlap"
            raw.fill_(1)
    wanted = sum(end - begin for sections in laid.sections for _, begin, end in sections)
    assert int(message.sum()) == wanted
    assert not message[:HEADER_BYTES].any()


def test_numbers_are_all_values_without_the_header() -> None:
    laid = layout((("float16", 3),), (("float16", 0),), (("float16", 2),))
    message = torch.zeros(laid.bytes, dtype=torch.uint8)
    a, _, b = (sections[0] for sections in laid.views(message))
    a.copy_(torch.tensor([1.0, 2.0, 3.0]))
    b.copy_(torch.tensor([4.0, 5.0]))
    numbers = laid.numbers(message)
    assert numbers.tolist() == [1.0, 2.0, 3.0, *[0.0] * 5, 4.0, 5.0], "zeros between them"
    assert [part.tolist() for part in laid.values(numbers)] == [[1.0, 2.0, 3.0], [], [4.0, 5.0]]
    assert numbers.dtype == torch.float16
    numbers.zero_()
    assert not a.any(), "the same memory"


# -- header ------------------------------------------------------------------------------------


def stamped(flags: int = 0, digest: int = DIGEST, step: int = STEP) -> torch.Tensor:
    message = torch.full((48,), 0xEE, dtype=torch.uint8)
    Header(message).write(digest, step, flags)
    return message


def test_the_header_is_four_little_endian_words_and_nothing_more() -> None:
    message = stamped(NON_FINITE)
    raw = bytes(message.tolist())
    assert raw[:8] == b"GRDWIRE4"
    assert struct.unpack("<qqqq", raw[:32])[1:] == (1, DIGEST, STEP)
    assert raw[32:] == b"\xee" * 16


def test_reading_tells_whether_every_rank_was_finite() -> None:
    good, bad = stamped(), stamped(NON_FINITE)
    assert check_headers(header_of(torch.stack([good, good, good])), DIGEST, STEP) is True
    for place in range(3):
        messages = [good] * 3
        messages[place] = bad
        assert check_headers(header_of(torch.stack(messages)), DIGEST, STEP) is False


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        (0, 0, r"must begin with gradwire's header; rank {r}'s begins with 0x0, 0x0\. .*doctor"),
        (1, 4, r"rank {r}'s begins with 0x\w+, 0x4\. "),
        (1, -1, r"rank {r}'s begins with 0x\w+, -0x1\. "),
        (2, 1, r"rank {r} sent a message of another bucket .*digest 0x1, .*Attach the same plan"),
        (3, 9, r"rank {r} is at step 9, this one at 7\. Call backward\(\) equally often"),
    ],
)
def test_a_wrong_word_is_refused_and_names_the_rank(
    rank: int, word: int, value: int, said: str
) -> None:
    messages = torch.stack([stamped()] * 3)
    messages[rank, :32].view(torch.int64)[word] = value
    with pytest.raises(PayloadError, match=said.format(r=rank)):
        check_headers(header_of(messages), DIGEST, STEP)


def test_every_rank_in_another_step_is_named() -> None:
    messages = torch.stack([stamped()] * 3)
    for rank, step in ((0, 9), (2, 6)):
        messages[rank, :32].view(torch.int64)[3] = step
    said = r"rank 0 is at step 9, rank 2 is at step 6, this one at 7\. Call backward"
    with pytest.raises(PayloadError, match=said):
        check_headers(header_of(messages), DIGEST, STEP)


@pytest.mark.parametrize("flags", [DAMAGED, DAMAGED | NON_FINITE])
def test_a_rank_that_received_damage_stops_all(flags: int) -> None:
    good, bad = stamped(), stamped(flags)
    with pytest.raises(PayloadError, match=r"rank 1 received a damaged payload in step 7"):
        check_headers(header_of(torch.stack([good, bad, good])), DIGEST, STEP)


def test_the_size_is_checked() -> None:
    messages = torch.stack([stamped()] * 3)
    check_size(messages, 3, 48)
    for world, size in ((2, 48), (4, 48), (3, 40), (3, 56)):
        with pytest.raises(
            PayloadError, match=rf"each of {world} ranks sends {size} bytes; .*\(3, 48\)"
        ):
            check_size(messages, world, size)
