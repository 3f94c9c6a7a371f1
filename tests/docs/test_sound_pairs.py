"""Strategies that pages recommend are sound with the optimizer that is named beside them."""

from __future__ import annotations

import re

import pytest
from doc_pages import ROOT

import gradwire

ALL = ("sgd", "sgdm", "adamw", "muon")


def rows() -> list[tuple[str, str]]:
    """(strategy, optimizer) of each row of the page's first table, one for each strategy."""
    text = (ROOT / "docs" / "choose-a-strategy.md").read_text(encoding="utf-8")
    table = text[text.index("| your case |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line)[2:4] for line in table]
    return [
        (strategy.replace("\\|", "|"), beside.strip())
        for strategies, beside in cells
        for strategy in re.findall(r"`(.*?)`", strategies)
    ]


def test_the_table_is_read() -> None:
    found = dict(rows())
    assert found["qsgd(4) | alltoall"] == "adamw, sgd, sgdm"
    assert found["topk(0.01)+ef | allgather"] == "sgd"
    assert len(found) > 18


@pytest.mark.parametrize(("strategy", "beside"), rows())
def test_a_recommendation_is_sound(strategy: str, beside: str) -> None:
    text = re.sub(r"\]\(.*?\)", "]", beside)  # a link's page may have an optimizer's name, too
    named = [name for name in ALL if re.search(rf"\b{name}\b", text)]
    optimizers = ALL if beside.startswith("any") else named
    kinds = {gradwire.sound(strategy, optimizer).kind for optimizer in optimizers}
    assert kinds == {"sound"} or (beside == "not measured" and not kinds)
    if not kinds:
        assert {gradwire.sound(strategy, name).kind for name in ALL} != {"sound"}, "it is known"
