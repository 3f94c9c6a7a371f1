"""The filters of the table of strategies, in a real browser and by keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT
from selenium.webdriver import Keys

import gradwire
from building import strategies

STATIC = ROOT / "docs" / "_static"
SHOWN = """
const seen = (e) => e.getClientRects().length > 0;
return [...document.querySelectorAll("tbody tr")].filter(seen)
  .map((row) => row.cells[0].innerText);
"""
TIMES = """
const seen = (e) => e.getClientRects().length > 0;
return [...document.querySelectorAll("tbody td[data-rate]")].filter(seen)
  .map((cell) => Number(cell.dataset.seconds));
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Writes pages of the table alone, with its script and without."""
    folder = tmp_path_factory.mktemp("table")
    script = (STATIC / "strategies.js").read_text(encoding="utf-8")
    style = (STATIC / "site.css").read_text(encoding="utf-8")
    page = f"<!doctype html><meta charset=utf-8><style>{style}</style>{strategies.table()}"
    found = {"plain": page, "filtered": f"{page}<script>{script}</script>"}
    for name, text in found.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in found}


def choose(browser: Any, name: str, text: str) -> None:
    """Chooses by keyboard: types the first letters of the choice."""
    browser.find_element("name", name).send_keys(text)


def test_filters_leave_what_was_asked_for(browser: Any, tables: dict[str, Path]) -> None:
    browser.get(tables["filtered"].as_uri())
    every = browser.execute_script(SHOWN)
    assert not browser.find_element("name", "limit").is_enabled()
    choose(browser, "optimizer", "AdamW")
    sound = browser.execute_script(SHOWN)
    assert sound == [s for s in every if gradwire.sound(s, "adamw").kind == "sound"]
    assert 5 < len(sound) < len(every)
    choose(browser, "network", "1 G")
    assert len(browser.execute_script(TIMES)) == len(sound), "one column is left"
    choose(browser, "limit", "0.1 s")
    fast = browser.execute_script(SHOWN)
    assert max(browser.execute_script(TIMES)) <= 0.1
    asked = gradwire.recommend("adamw", fewer=12)  # 1.2 s in 0.1 s
    nearest = gradwire.Strategy.parse(fast[0])
    assert (nearest.compressor, nearest.collective) == (asked.compressor, asked.collective)
    said = browser.find_element("class name", "shown").text
    assert said.startswith(f"{len(fast)} of {len(every)} strategies")
    choose(browser, "model", "llama-muon")
    assert browser.execute_script(SHOWN) == []
    assert "None that is known" in browser.find_element("class name", "shown").text
    browser.find_element("css selector", "button").send_keys(Keys.ENTER)
    browser.execute_async_script("setTimeout(arguments[0], 50)")
    assert browser.execute_script(SHOWN) == every


def test_without_the_script_it_is_a_table(browser: Any, tables: dict[str, Path]) -> None:
    browser.get(tables["plain"].as_uri())
    assert len(browser.execute_script(SHOWN)) > 25
    assert not browser.find_element("css selector", "form").is_displayed()
