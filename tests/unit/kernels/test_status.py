"""The status word: what headers report of a step, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch

from gradwire import lockstep
from gradwire.errors import KernelError
from gradwire.kernels import (
    DAMAGED,
    NON_FINITE,
    is_raised,
    judge,
    new_status,
    run_unless,
    stamp,
)

FACTS = (0x32455249_57445247, 2**62 + 5, -7)
"""Whole 64-bit words, signed."""


def headers(*flags: int) -> torch.Tensor:
    first, *more = FACTS
    rows = [[first, flag, *more] for flag in flags]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 4)


def told(given: torch.Tensor, before: int = 0) -> int:
    """Returns the status afterwards; both rooms must agree."""
    words = [new_status().fill_(before) for _ in range(2)]
    for word, face in zip(words, (judge, in_torch(judge))):
        face(given, FACTS, word)
    assert torch.equal(*words)
    return int(words[0])


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((0, 0, 0), 0), ((), 0), ((0, NON_FINITE, 0), NON_FINITE), ((DAMAGED,), DAMAGED),
        ((NON_FINITE, DAMAGED), NON_FINITE | DAMAGED), ((3, 0), NON_FINITE | DAMAGED),
        ((0, 4), DAMAGED), ((0, 5), DAMAGED), ((-1, 0), DAMAGED), ((2**62, 0), DAMAGED),
    ],
)  # fmt: skip
def test_all_that_any_header_says(flags: tuple[int, ...], wanted: int) -> None:
    given = headers(*flags)
    assert told(given) == wanted
    assert told(given, NON_FINITE) == wanted | NON_FINITE, "it is never cleared"


@given(st.integers(0, 2), st.sampled_from([0, 2, 3]), st.integers(0, 63))
def test_any_bit_of_a_fact_is_damage(rank: int, column: int, bit: int) -> None:
    given = headers(0, 0, 0)
    given[rank, column] ^= torch.tensor(1) << bit
    assert told(given) == DAMAGED


@pytest.mark.parametrize(
    "given", [torch.zeros(4), torch.zeros(4, dtype=torch.int64), headers(0)[:, :3]]
)
def test_what_is_no_header_is_refused(given: torch.Tensor) -> None:
    with pytest.raises(KernelError, match=r"headers must be torch\.int64 of shape \(n, 4\)"):
        judge(given, FACTS, new_status())


@pytest.mark.parametrize("face", [stamp, in_torch(stamp)])
def test_a_stamp_is_its_facts(face: Callable[..., None]) -> None:
    words = torch.full((4,), 9)
    face(words, (FACTS[0], 3, *FACTS[1:]))
    assert words.tolist() == [FACTS[0], 3, *FACTS[1:]]


def test_a_stamp_of_another_size_is_refused() -> None:
    with pytest.raises(KernelError, match=r"words must be torch\.int64 of shape \(4,\)"):
        stamp(torch.zeros(3, dtype=torch.int64), (1, 2, 3, 4))


def test_memory_that_was_freed_is_no_header() -> None:
    whole = torch.ones(10, dtype=torch.int64)
    words = whole[2:6]
    whole.untyped_storage().resize_(0)
    with pytest.raises(KernelError, match="words must be dense, with its elements in memory"):
        stamp(words, (1, 2, 3, 4))
    with pytest.raises(KernelError, match="headers must be dense, with its elements in memory"):
        judge(words.view(1, 4), FACTS, new_status())


@pytest.mark.parametrize("facts", [FACTS[:2], (*FACTS, 0)])
def test_headers_have_three_facts(facts: tuple[int, ...]) -> None:
    word = new_status()
    with pytest.raises(KernelError, match="a header has three facts beside its flags"):
        judge(headers(0), facts, word)
    assert not word


@pytest.mark.parametrize("fact", [2**63, -(2**63) - 1])
def test_facts_have_64_bits(fact: int) -> None:
    words = torch.full((2,), 9)
    with pytest.raises(KernelError, match="signed numbers of 64 bits"):
        stamp(words, (1, fact))
    assert words.tolist() == [9, 9]
    with pytest.raises(KernelError, match=r"pass a step from -2\^63 to 2\^63-1"):
        lockstep("fp16 | allgather", [torch.ones(2)] * 2, step=fact)


@pytest.mark.parametrize("raised", [0, NON_FINITE, DAMAGED])
def test_work_is_done_by_what_the_word_says(raised: int) -> None:
    word, done = new_status().fill_(raised), list[str]()
    run_unless(word, lambda: done.append("work"), otherwise=lambda: done.append("other"))
    run_unless(word, lambda: done.append("work"))
    assert done == (["other"] if raised else ["work", "work"])
    assert is_raised(word) == bool(raised)
