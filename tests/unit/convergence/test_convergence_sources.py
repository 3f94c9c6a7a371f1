"""The task for a GPU: the text it finds and batches of it. Its model is `gpt`'s, only larger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """Two folders of modules, with some texts in both; none of the modules is Python's own."""
    folders = [tmp_path / "own", tmp_path / "other"]
    for number in range(150):
        module = folders[number % 2] / f"package{number % 3}" / f"module{number}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(f"number = {number:04}\n" * 20)
    for folder in folders:
        folder.joinpath("again.py").write_text("number = 0000\n" * 20)
        folder.joinpath("notes.txt").write_text("no module\n" * 1000)
    return folders


def lines(text: torch.Tensor) -> list[str]:
    return bytes(text.tolist()).decode().splitlines()


def test_each_text_is_read_once_and_whole_files_are_held_out(
    suite: SimpleNamespace, installed: list[Path]
) -> None:
    found = suite.tasks.sources.read(installed)
    train, held_out = lines(found.train), lines(found.held_out)
    assert sorted({*train, *held_out}) == [f"number = {number:04}" for number in range(150)]
    assert len(train) + len(held_out) == 150 * 20
    assert len(set(held_out)) == 3
    assert set(train).isdisjoint(held_out)
    assert train != sorted(train), "mixed"


def test_the_text_follows_from_what_is_installed_alone(
    suite: SimpleNamespace, installed: list[Path]
) -> None:
    first, again = (suite.tasks.sources.read(folders) for folders in (installed, installed[::-1]))
    assert first.digest == again.digest
    assert torch.equal(first.train, again.train)
    installed[0].joinpath("new.py").write_text("number = 9999\n" * 20)
    assert suite.tasks.sources.read(installed).digest != first.digest


def test_no_more_is_read_than_asked_for(suite: SimpleNamespace, installed: list[Path]) -> None:
    found = suite.tasks.sources.read(installed, limit=20_000)
    assert 20_000 <= len(found.train) + len(found.held_out) < 20_000 + 280


def test_where_nothing_is_installed_it_says_so(suite: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0 bytes of them are installed here"):
        suite.tasks.sources.read([tmp_path])


def test_a_batch_is_of_its_seed_step_and_worker(
    suite: SimpleNamespace, installed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = suite.tasks.sources
    text = sources.read(installed)
    monkeypatch.setattr(sources, "sources", lambda: text)
    first, again, later, other = (
        sources.batches(seed, step, 2) for seed, step in ((0, 5), (0, 5), (0, 6), (1, 5))
    )
    assert [tuple(part.shape) for (part,) in first] == [(16, 129), (16, 129)]
    assert all(torch.equal(a, b) for (a,), (b,) in zip(first, again))
    for (elsewhere,) in (later[0], other[0], first[1]):
        assert not torch.equal(first[0][0], elsewhere)
    assert 0 <= evaluated(sources, text) - 8 < 1, "who guesses takes eight bits a byte"


def evaluated(sources: Any, text: Any) -> float:
    class Guess(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.zeros(256))

        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            return self.scores.expand(*symbols.shape, 256)

    return float(sources.evaluate(Guess()))


def test_the_model_is_thirty_times_gpt_s(suite: SimpleNamespace) -> None:
    sizes = [
        sum(p.numel() for p in suite.tasks.TASKS[name].model().parameters())
        for name in ("gpt", "sources")
    ]
    assert sizes == [360_577, 10_893_568]


def test_data_go_where_the_model_is(suite: SimpleNamespace) -> None:
    model = nn.Linear(2, 1, device="meta")
    found = suite.task.there(model, torch.zeros(2), torch.zeros(3))
    assert [x.device.type for x in found] == ["meta", "meta"]
