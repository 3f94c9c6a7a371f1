"""Tokens of a mixture of experts as flows: there, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.cli.main import main
from gradwire.errors import NetworkError
from gradwire.network import Flow
from gradwire.network.importers.tokens import flows

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


def test_the_command_plans_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("\n".join(" ".join(str(7 * a + b) for b in range(32)) for a in range(16)))
    job = ["--topology", "leaf_spine(4, 4, 4)", "--tokens", str(file), "--token-bytes", "4096"]
    assert main(["network", "plan", *job, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"wrap", "lpt"} <= {row["scheme"] for row in told["rows"]}
    assert "min_split" in {one["scheme"] for one in told["refused"]}, "of unequal sizes"
    assert main(["network", "plan", *job[:2], "--tokens", str(tmp_path / "none.txt")]) == 2
    assert "Correct the name" in capsys.readouterr().err
