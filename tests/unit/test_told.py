"""Bytes that later sizes depend on: what is damaged, or another rank's, is not used."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import PayloadError
from gradwire.streams.told import (
    check_seals,
    from_rank,
    longest,
    seal,
    sealed,
    told_length,
    unsealed,
)


def test_lengths_are_read_back() -> None:
    lengths = torch.tensor([told_length(n) for n in (48, 32, 64)])
    assert longest(lengths, 64) == 64


@pytest.mark.parametrize("length", [-16, 80])
def test_a_length_that_no_message_has_names_the_rank(length: int) -> None:
    lengths = torch.tensor([told_length(n) for n in (48, length)])
    with pytest.raises(PayloadError, match=r"what rank 1 sent: .* from 0 to 64"):
        longest(lengths, 64)


def three() -> torch.Tensor:
    return torch.stack([sealed(torch.full((13,), r, dtype=torch.uint8)) for r in range(3)])


def test_sealed_bytes_are_read_back() -> None:
    content = unsealed(three(), 13, range(3))
    assert content.tolist() == [[r] * 13 for r in range(3)]


def test_messages_that_are_taken_for_each_other_s_are_refused() -> None:
    messages = three()
    for r in range(3):
        seal(messages[r], r)
    check_seals(messages, range(3))
    messages = messages[[0, 2, 1]]
    with pytest.raises(PayloadError, match="that of rank 1 is wrong"):
        check_seals(messages, range(3))


def test_every_flipped_bit_names_the_sender() -> None:
    messages = three()
    for bit in range(8 * messages.shape[1]):
        messages[2, bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError, match="that of rank 2 is wrong"):
            unsealed(messages, 13, range(3))
        messages[2, bit // 8] ^= 1 << bit % 8


def test_an_error_of_reading_names_the_rank() -> None:
    def read(text: str) -> str:
        raise PayloadError(f"{text} is damaged")

    with pytest.raises(PayloadError, match="what rank 4 sent: it is damaged"):
        from_rank(4, read, "it")
