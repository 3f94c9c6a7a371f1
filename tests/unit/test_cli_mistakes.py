"""Typing mistakes on the command line: errors with the rule, the value and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.cli import main as cli

TOPOLOGY = ["network", "plan", "--topology", "leaf_spine(2, 2, 2)"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["explain", "topk(0.01)+ef | allgather"], ("is a strategy", "`gradwire available topk`")),
        (["explain", "no.json"], ("'no.json': No such file or directory. Correct it, or write",)),
        (["explain", "none | allreduse"], ("the path of a plan", "No such file")),
        (["explain", "x" * 300], ("the path of a plan", "File name too long")),
        (["available", "TopK"], ("got 'TopK'", "'gradwire available topk'")),
        (["available", "topk(0.01)"], ("without parameters", "'gradwire available topk'")),
        (["available", "topk+ef | zen"], ("without parameters", "'gradwire available topk'")),
        (["available", "fp32"], ("got 'fp32'", "'gradwire available none'")),
        (["bench", "compressors", "--elements", "-1"], ("1 to 268,435,456; got '-1'",)),
        (["bench", "kernels", "--repeats", "0"], ("1 to 1,000,000; got '0'",)),
        (["bench", "conductor", "--lanes", "many"], ("--lanes", "1 to 16; got 'many'")),
        (["lab", "run", "--timeout", "nan", "--", "true"], ("above 0; got 'nan'",)),
        (
            ["lab", "run", "--hosts", "9" * 20, "--placement", "shuffled", "--", "true"],
            ("hosts must be a whole number from 1 to 256", "9" * 20),
        ),
        (["network", "whatif", "--places", "-1", *TOPOLOGY[2:]], ("0 to 10,000; got '-1'",)),
        (
            ["profile", "--", "no/train.py"],
            ("'no/train.py': No such file", "-- torchrun … train.py"),
        ),
        (["lab", "run"], ("needs the command that every rank runs; got none", "-- python train")),
        ([*TOPOLOGY, "--fail", "leaf0-spine9"], ("got 'leaf0-spine9'", "as leaf0-spine0 or")),
        ([*TOPOLOGY, "--fail", "spine9"], ("got 'spine9'", "as leaf0-spine0 or spine0")),
    ],
)
def test_says_the_value_and_what_to_type(
    typed: list[str], said: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(typed)
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    told = capsys.readouterr().err
    assert not [part for part in said if part not in told], told
