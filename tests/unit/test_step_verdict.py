"""The verdict on a bucket's step: collected on the way, reported at its end."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from gradwire.errors import PayloadError
from gradwire.kernels import DAMAGED, NON_FINITE
from gradwire.runtime.message import Header, header_of
from gradwire.runtime.verdict import Verdict, settle

DIGEST, STEP = 5, 7


def headers(*flags: int, step: int = STEP) -> torch.Tensor:
    """The headers of each rank's message; all messages have 40 bytes."""
    sent = torch.zeros((len(flags), 40), dtype=torch.uint8)
    for message, flag in zip(sent, flags):
        Header(message).write(DIGEST, step, flag)
    return header_of(sent)


def begun() -> Verdict:
    verdict = Verdict(DIGEST, torch.device("cpu"))
    verdict.begin(STEP)
    return verdict


def test_a_step_counts_unless_something_speaks_against_it() -> None:
    verdict = begun()
    verdict.hear(headers(0, 0))
    assert verdict.fine
    verdict.hear(headers(0, NON_FINITE))
    assert not verdict.fine
    verdict.begin(STEP + 1)
    assert verdict.fine, "of the next step nothing is known"


def test_what_is_not_finite_spoils_it() -> None:
    verdict = begun()
    verdict.spoil()
    assert not verdict.fine


def test_damage_is_said_when_the_step_ends_by_the_first_reason() -> None:
    verdict = begun()
    verdict.hear(headers(0, 0, step=3))
    verdict.refuse(PayloadError("a list that is none"))
    verdict.spoil()
    for _ in range(2):
        with pytest.raises(PayloadError, match="rank 0 is at step 3, rank 1 is at step 3"):
            _ = verdict.fine


def test_an_owner_s_own_reason_comes_before_what_it_told_all() -> None:
    verdict = begun()
    verdict.hear(headers(0, NON_FINITE))
    verdict.refuse(PayloadError("a list that is none"))
    verdict.hear(headers(DAMAGED, 0))
    with pytest.raises(PayloadError, match="a list that is none"):
        _ = verdict.fine


@pytest.mark.parametrize("reads_first", [False, True])
def test_what_speaks_against_another_s_step_does_against_this(reads_first: bool) -> None:
    """The other's reasons and their sources are reported too, and both are read in one go."""
    for flag, told in ((NON_FINITE, None), (DAMAGED, "over there: .* rank 1 received a damaged")):
        verdict, other = begun(), begun()
        other.hear(headers(0, flag))
        verdict.join(other, "over there")
        if reads_first:
            settle([verdict])
            assert other._read == flag
        with pytest.raises(PayloadError, match=told) if told else nullcontext():
            assert not verdict.fine
        assert verdict.held_back
        verdict.begin(STEP)
        assert verdict.fine, "the next step is its own"


def test_what_else_is_wanted_is_read_with_the_words() -> None:
    asking, silent, last = begun(), begun(), begun()
    asking.ask(torch.tensor([0, 3, 0]))
    last.ask(words := torch.tensor([5]))
    last.spoil()
    assert asking.answers == [0, 3, 0], "whoever does not wait for others may read by himself"
    settle([asking, silent, last])
    words.fill_(9)
    assert (asking.answers, silent.answers, last.answers) == ([0, 3, 0], None, [5])
    assert (asking.fine, silent.fine, last.fine) == (True, True, False)
    asking.begin(STEP)
    assert asking.answers is None


def test_headers_are_remembered_when_the_network_s_buffer_is_another_s() -> None:
    verdict, arrived = begun(), headers(0, DAMAGED)
    verdict.hear(arrived)
    arrived.copy_(headers(0, 0))
    with pytest.raises(PayloadError, match="rank 1 received a damaged payload"):
        _ = verdict.fine
