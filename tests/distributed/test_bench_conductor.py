"""gradwire bench conductor: what a bucket costs, in a job of one rank."""

from __future__ import annotations

import json

import pytest

from gradwire.cli.main import main


@pytest.mark.parametrize("strategy", ["", "int8 | allgather"])
def test_every_step_is_measured(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Strategies with memory, as the default is, are measured, too: a step has gradients of its
    own."""
    options = ["--buckets", "2", "--elements", "64", "--repeats", "3", "--json"]
    options += ["--strategy", strategy] if strategy else []
    assert main(["bench", "conductor", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds_per_bucket"]["exchange"]["median"] > 0
    assert found["strategy"] == (strategy or "dgc(0.01) | allgather")


def test_other_moves_than_the_loop_s_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "conductor", "--strategy", "topk(0.01)+ef | zen"]) == 2
    assert "Use 'topk(0.01)+ef | allgather'" in capsys.readouterr().err
