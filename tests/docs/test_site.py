"""The site of the documentation: its parts here, and with Sphinx the whole of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT

import gradwire
from building import docstrings, names, pages, strategies
from gradwire.trace import TRAINING_THREAD, Span, Trace
from step_picture import drawn

# -- the menu and the reference ------------------------------------------------------------------


def test_every_page_is_in_the_menu_once() -> None:
    listed = [page for _, entries in pages.menu() for page in entries]
    assert sorted([*listed, pages.INDEX]) == sorted(PAGES) == pages.pages()


def public() -> set[str]:
    """The names that the package and its parts export for users."""
    parts = ("optim", "testing", "lab", "network")
    found = {f"gradwire.{name}" for name in gradwire.__all__}
    for part in parts:
        module = importlib.import_module(f"gradwire.{part}")
        found |= {f"gradwire.{part}.{name}" for name in module.__all__}
    for part in ("errors", "metrics"):
        module = importlib.import_module(f"gradwire.{part}")
        own = {
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        }
        found |= {f"gradwire.{part}.{name}" for name in own if not name.startswith("_")}
    return found


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    listed = [name for page in PAGES if page.startswith("docs/api/") for name in pages.names(page)]
    assert sorted(listed) == sorted(set(listed))
    assert public() <= set(listed)


@pytest.mark.parametrize("name", sorted(pages.documented()))
def test_what_the_reference_names_is_there_and_documented(name: str) -> None:
    assert names.kind_of(name) == "data" or names.found(name).__doc__


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("gradwire.attach", "gradwire.attach"),
        ("gradwire.attach(model, 'x | y')", "gradwire.attach"),
        ("Handle.stats()", "gradwire.Handle.stats"),
        ("Claims.usual", "gradwire.member.Claims"),  # a field, told by the class
        ("gradwire.optim.AdamW", "gradwire.optim.AdamW"),
        ("Handle.nothing", None),
        ("attach", None),
        ("topk(0.01)", None),
        ("model.parameters()", None),
    ],
)
def test_code_that_names_something_leads_there(text: str, meant: str | None) -> None:
    assert names.meant(text) == meant


def test_pages_get_what_sphinx_needs() -> None:
    index = pages.as_sphinx_reads(pages.INDEX, pages.text_of(pages.INDEX))
    assert ":caption: Begin\n\nWhy </docs/why>\n" in index
    reference = pages.as_sphinx_reads("docs/api/train.md", "# Train\n\n- `gradwire.Handle`\n")
    assert ".. autoclass:: gradwire.Handle\n   :members:\n" in reference
    text = "[a](design/) [b](plan.md) [c](design/heart.md)\n```console\nmake docs\n```\n"
    there = pages.as_sphinx_reads("docs/x.md", text)
    assert there == "a [b](plan.md) [c](design/heart.md)\n```bash\nmake docs\n```\n"


# -- docstrings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("docstring", "there"),
    [
        ("Of `a | b`s.", r"Of ``a | b``\ s."),
        ("|x| * y_ and x_y", r"\|x\| \* y\_ and x_y"),
        ("Words\nof `a\nb`.", "Words\nof ``a\nb``."),
        ("As docs/plan.md says.", "As :doc:`/docs/plan` says."),
        ("So:\n\n    x = 1\n\nMore.", "So:\n\n.. code-block:: python\n\n   x = 1\n\nMore."),
        ("So:\n\n    a ──► b", "So:\n\n.. code-block:: text\n\n   a ──► b\n"),
        ("Args:\n    x: it\n        is `this`.", "Args:\n    x: it\n        is ``this``."),
        ("n: one\n    more.\nm: two.", "- n: one\n  more.\n- m: two."),
    ],
)
def test_docstrings_become_what_autodoc_takes(docstring: str, there: str) -> None:
    assert "\n".join(docstrings.translated(docstring.splitlines())) == there


# -- the table of strategies ---------------------------------------------------------------------


class Cells(HTMLParser):
    """The rows of a table's cells, as (attributes, text)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[dict[str, str | None], str]]] = []
        self.scripts = 0
        self._open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append((dict(attributes), ""))
        self._open = self._open or tag in ("td", "th")
        self.scripts += tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            attributes, text = self.rows[-1][-1]
            self.rows[-1][-1] = attributes, text + data


@pytest.fixture(scope="module")
def table() -> Cells:
    text = pages.text_of("docs/choose-a-strategy.md")
    with_table = strategies.with_table(text)
    assert "lists what is sound with an optimizer" in text
    assert "lists what is sound with an optimizer" not in with_table
    return Cells(with_table)


def test_the_table_says_what_the_package_says(table: Cells) -> None:
    head, *rows = table.rows
    assert len(rows) > 25
    assert {len(row) for row in rows} == {len(head)}
    for row in rows:
        strategy = row[0][1]
        for attributes, said in row:
            if name := attributes.get("data-optimizer"):
                kind = gradwire.sound(strategy, name).kind
                assert said.split(",")[0] == attributes["class"] == kind, (strategy, name)
    firsts = [row[0][1] for row in rows]
    assert firsts[0] == "none | allreduce"
    assert {"topk(0.001)+ef | allgather", "nonzero | zen", "powersgd(4)"} <= set(firsts)
    assert table.scripts == 0


def test_times_follow_from_bytes(table: Cells) -> None:
    by_strategy = {row[0][1]: row for row in table.rows[1:]}
    times = [t for a, t in by_strategy["none | allreduce"] if "data-rate" in a]
    assert times == ["12 s", "1.2 s", "0.12 s", "48 ms"]
    sparse = {text for a, text in by_strategy["nonzero | zen"] if "data-rate" in a}
    assert sparse == {"–"}


def test_models_are_those_of_the_study() -> None:
    trained = strategies.models_of_tasks()
    assert trained["gpt-muon"] == trained["gpt"]
    assert trained["glyphs"].startswith("perceptron")
    shown = {model for row in strategies.rows() for model in row.models}
    assert shown - {strategies.FORMAT, strategies.ROWS} <= set(trained)


# -- the picture ---------------------------------------------------------------------------------


def test_one_bucket_stands_out_in_the_picture() -> None:
    spans = [
        Span(0, TRAINING_THREAD, "compute", "", 0.0, 0.01),
        Span(0, TRAINING_THREAD, "backward", "", 0.01, 0.02),
        Span(0, TRAINING_THREAD, "wait", "", 0.02, 0.04),
        *(
            Span(0, 0, kind, f"bucket {bucket} [a<b]", 0.02 + 0.003 * i, 0.023 + 0.003 * i, 7.0)
            for bucket in (1, 12)
            for i, kind in enumerate(("encode", "wire", "decode"))
        ),
    ]
    picture = ET.fromstring(drawn(Trace(1, spans), 1))
    boxes = picture.findall(".//{*}rect[@opacity]")
    assert [box.get("opacity") for box in boxes] == ["1"] * 6 + ["0.28"] * 3
    numbers = [text.text for text in picture.findall(".//{*}text[@class='n']")]
    assert numbers == ["1", "2", "3", "4", "5"]
    assert boxes[3].findtext("{*}title") == "rank 0, bucket 1 [a<b]: encode 3.00 ms, 7 bytes"


def test_the_picture_of_the_page_is_whole_and_fetches_nothing() -> None:
    text = (ROOT / "docs" / "_static" / "bucket.svg").read_text(encoding="utf-8")
    assert len(ET.fromstring(text).findall(".//{*}rect[@opacity]")) > 60
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    style = (ROOT / "src" / "gradwire" / "report" / "assets" / "page.css").read_text("utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w{6});", style.partition("@media")[0]))
    kinds = ("compute", "backward", "wait", "encode", "wire", "decode")
    found = dict.fromkeys(re.findall(r'width="12" height="12" fill="(#\w{6})"', text))
    assert list(found) == [colours[kind] for kind in kinds], "as on the page of a report"


# -- all of it -----------------------------------------------------------------------------------

TOOLS = ("sphinx", "furo", "myst_parser")


@pytest.mark.full
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, TOOLS)), reason="no Sphinx: `make docs` gets it"
)
@pytest.mark.timeout(900)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-c", "docs"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "trees", ".", tmp_path / "site"], cwd=ROOT, text=True,
        capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    for page in PAGES:
        html = (site / page).with_suffix(".html").read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|link|img|iframe)\b[^>]*https?://[^>]*>", html)
        assert not fetched, (page, fetched)
    assert 'url=docs/index.html"' in (site / "index.html").read_text()
    assert "gradwire.Handle.stats" in (site / "docs" / "api" / "train.html").read_text()
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", style.read_text()), style
