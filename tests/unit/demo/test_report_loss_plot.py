"""The plot, with matplotlib and without."""

import importlib.util
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradwire.report import loss_plot

LINES = [
    loss_plot.Line("no synchronization", [(0.0, 9.2), (2.0, 7.1)], reference=True),
    loss_plot.Line("DDP fp32", [(0.0, 9.2), (30.0, 6.9)]),
    loss_plot.Line("dgc(0.001) | allgather", [(0.0, 9.2), (5.0, 8.0), (12.0, 6.9)]),
]


def test_a_png_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = loss_plot.save(LINES, "title", 6.9, tmp_path / "new" / "folder")
    assert path.name == "loss.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_svg_where_matplotlib_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = loss_plot.save(LINES, "1 < 2 & more", 6.9, tmp_path)
    assert path.name == "loss.svg"
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "1 < 2 & more" in words
    assert {line.label for line in LINES} <= set(words)


def test_the_svg_draws_within_its_page() -> None:
    root = ElementTree.fromstring(loss_plot.svg(LINES, "title", 6.9))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    drawn = [e for e in root.iter() if e.attrib.get("stroke-width") == "2"]
    assert len(drawn) == len(LINES)
    for element in drawn:
        places = re.findall(r"([\d.]+),([\d.]+)", element.attrib["points"])
        assert all(0 < float(x) < width and 0 < float(y) < height for x, y in places)


def test_the_svg_starts_high_and_ends_low() -> None:
    root = ElementTree.fromstring(loss_plot.svg(LINES[1:2], "title", 6.9))
    line = next(e for e in root.iter() if e.attrib.get("stroke-width") == "2")
    assert line.attrib["points"] == "60.0,40.0 840.0,440.0"


@pytest.mark.parametrize("count", [1, 7, 9])
def test_every_line_has_a_colour_and_neighbours_differ(count: int) -> None:
    lines = [loss_plot.Line(str(i), [(0.0, 1.0)]) for i in range(count)]
    got = loss_plot.colours(lines)
    assert len(got) == count
    assert all(a != b for a, b in itertools.pairwise(got))


def test_references_are_grey_and_take_no_colour() -> None:
    grey, first, second = loss_plot.colours(LINES)
    assert [first, second] == loss_plot.colours(LINES[1:])
    assert grey not in (first, second)


def test_one_flat_line_can_be_drawn(tmp_path: Path) -> None:
    lines = [loss_plot.Line("flat", [(0.0, 7.0)])]
    assert "flat" in loss_plot.svg(lines, "title", 7.0)
