"""Tokens of a mixture of experts as flows, to the experts and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import NetworkError
from gradwire.network import Flow
from gradwire_formats.tokens import flows, tokens

TEXT = """# two ranks, two experts each
1, 2, 3, 0
0 5 7 11  # rank 1
"""


def test_tokens_go_to_their_experts_and_come_back() -> None:
    assert list(flows(TEXT, 100)) == [
        Flow(0, 1, 300, 0), Flow(1, 0, 500, 0), Flow(1, 0, 300, 1), Flow(0, 1, 500, 1),
    ]  # fmt: skip


def test_who_sends_nothing_has_no_flow() -> None:
    assert list(flows("4 0\n0 4", 8)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2\n3", r"a number for each of 2 experts; line 2 is '3'"),
        ("1 x\n3 4", r"whole numbers from 0.*line 1 is '1 x'"),
        ("1 -2\n3 4", r"whole numbers from 0.*line 1"),
        ("1 2.5\n3 4", r"whole numbers from 0.*line 1"),
        (f"1 {1 << 41}\n3 4", r"whole numbers from 0 to 1,099,511,627,776; line 1"),
        ("1 2 3\n3 4 5", r"shared out equally.*got 2 lines of 3 experts"),
        ("# nothing", r"got 0 lines of 0 experts"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        flows(text, 1)


def test_tokens_have_bytes() -> None:
    with pytest.raises(NetworkError, match="token_bytes"):
        flows(TEXT, 0)


def test_bytes_are_counted_whole() -> None:
    """Of 64 bits those beyond 63 would be lost, and the flow with them."""
    text = f"0 {1 << 40}\n3 0"
    assert flows(text, 1 << 22)[0].bytes == 1 << 62
    with pytest.raises(NetworkError, match=r"1,099,511,627,776 tokens of 16,777,216 bytes\."):
        flows(text, 1 << 24)


def test_a_file_is_of_so_many_ranks(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text(TEXT)
    for ranks in (2, 3):
        assert tokens(ranks, 5, str(file), token_bytes=100) == flows(TEXT, 100)
    assert tokens(2, 5, str(file)) == flows(TEXT, 8192)
    with pytest.raises(NetworkError, match="tokens of rank 1, and there are 1 ranks"):
        tokens(1, 5, str(file))
    with pytest.raises(NetworkError, match="Correct the name"):
        tokens(2, 5, str(tmp_path / "none.txt"))
