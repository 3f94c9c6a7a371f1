"""The command: a table, a document, a plot, and measured points in each."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest

from gradwire.cli import bench_sparse as bench
from gradwire.cli import main as cli
from gradwire.errors import UsageError
from gradwire.report.volume_plot import Curve, save
from gradwire.sparsity import SCHEMES, expected, volumes

SMALL = ("bench", "sparse", "bert", "--scale", "0.0625")
drawing = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib"
)
PNG = b"\x89PNG"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    given = [
        {"scheme": "zen", "n": 4, "bytes": 3.5e6, "note": "kept"},
        {"scheme": "allgather", "n": 8, "bytes": 7e6},
        {"scheme": "columns", "n": 6, "bytes": 1e6},
    ]
    path.write_text(json.dumps(given))
    return path


# -- table and document ------------------------------------------------------------------------


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sparsity = expected("bert", scale=1 / 16)
    assert document["elements"] == sparsity.elements
    assert document["columns"] == 768
    assert document["measured"] == []
    assert [row["workers"] for row in document["rows"]] == [2**i for i in range(1, 13)]
    for row in document["rows"]:
        assert row["bytes"] == volumes(sparsity, row["workers"])
        assert row["gamma"] == sparsity.gamma(row["workers"])


def test_a_table_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(list(SMALL)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "bert: 1.465 M fp32 elements, 1.33% of one worker's not zero, in rows of 768"
    )
    assert lines[2].split()[:4] == ["workers", "γ", "dense,", "MB"]
    assert all(scheme in lines[2] for scheme in SCHEMES)
    assert len(lines) == 2 + 2 + 12
    dense = volumes(expected("bert", scale=1 / 16), 2)["dense"] / 1e6
    assert lines[4].split()[2] == f"{dense:.3g}"


def test_workers_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--workers", "6", "3", "6", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["workers"] for row in rows] == [3, 6]
    assert "sparcml" not in rows[0]["bytes"]


def test_a_scheme_has_a_dash_where_it_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--workers", "3", "4"]) == 0
    three, four = (line.split() for line in capsys.readouterr().out.splitlines()[-2:])
    at = 2 + list(SCHEMES).index("sparcml")
    assert (three[at], four[at] == "–") == ("–", False)


@pytest.mark.parametrize("scheme", ["columns"])
def test_without_rows_there_is_no_column(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "sparse", "uniform", "--scale", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "one by one" in out
    assert scheme not in out


def test_three_digits_that_count() -> None:
    assert bench._megabytes(1_234_567) == "1.23"
    assert bench._megabytes(987_654_321) == "988"
    assert bench._megabytes(12_345_678_901) == "12,346"


# -- measured points ---------------------------------------------------------------------------


def test_measured_points_stand_in_brackets(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SMALL, "--workers", "4", "6", "8", "--measured", str(points)]) == 0
    out = capsys.readouterr().out
    assert "(3.5)" in out.splitlines()[-3]
    assert "(1)" in out.splitlines()[-2]
    assert "(7)" in out.splitlines()[-1]


def test_measured_points_are_in_the_document(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SMALL, "--measured", str(points), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == json.loads(points.read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", "cannot be read"),
        ("{}", r"has \{\}"),
        ('[{"scheme": "zen", "n": 4}]', 'has {"scheme": "zen", "n": 4}'),
        ('[{"scheme": "pigeon", "n": 4, "bytes": 1}]', "pigeon"),
    ],
)
def test_points_that_cannot_be_read(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as raised:
        bench.read_measured(path)
    assert str(raised.value).startswith("measured points are a JSON list of {scheme, n, bytes}")
    assert str(path) in str(raised.value)


def test_points_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        bench.read_measured(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["gnn"], "a preset is one of"),
        (["bert", "--workers", "0"], "workers are counted from 1; got 0"),
        (["bert", "--scale", "0"], "scale multiplies"),
    ],
)
def test_what_is_wrong_is_said(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "sparse", *more]) == 2
    assert said in capsys.readouterr().err


# -- the plot ----------------------------------------------------------------------------------


@drawing
def test_the_plot_is_written(points: Path, tmp_path: Path) -> None:
    path = tmp_path / "volumes.png"
    assert cli.main([*SMALL, "--measured", str(points), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(PNG)


@drawing
def test_the_plot_names_every_curve(tmp_path: Path) -> None:
    path = tmp_path / "volumes.svg"
    curves = [
        Curve("all", [(2, 1e6), (4, 2e6)], style="ceiling"),
        Curve("leaves", [(2, 5e6), (4, 5e8)]),
        Curve("above from the start", [(2, 5e8), (4, 5e9)]),
        Curve("stays", [(2, 1e5), (4, 2e5)], [(2, 1.1e5)]),
        Curve("least", [(2, 1e4), (4, 1e5)], style="floor"),
    ]
    save(curves, "a title", path)
    text = path.read_text()
    for label in ("a title", *(curve.label for curve in curves)):
        assert f"<!-- {label} -->" in text


@drawing
def test_an_ending_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one of .*png.*; got 'x\.doc'\. Use 'x\.png'"):
        save([Curve("a", [(2, 1.0)])], "", tmp_path / "x.doc")


@drawing
def test_the_script_saves_draws_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [{"scheme": "zen", "n": 4, "bytes": 123_456}]
    (tmp_path / "bert-measured.json").write_text(json.dumps(points))
    script = Path(__file__).parents[3] / "benchmarks" / "sparse" / "main.py"
    monkeypatch.setattr(sys, "argv", ["main", "bert", "--scale", "0.01", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert json.loads((tmp_path / "bert.json").read_text())["measured"] == points
    assert (tmp_path / "bert.png").read_bytes().startswith(PNG)
    assert "(0.123)" in capsys.readouterr().out


def test_without_matplotlib_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'gradwire\[plot\]'"):
        save([Curve("a", [(2, 1.0)])], "", tmp_path / "x.png")
