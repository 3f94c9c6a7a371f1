"""The command: a table, a document, a plot, and measured points in each of them."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from sparsity import SCHEMES, costs, expected, measure, measured, synthetic, times, volumes
from sparsity.counted import SUMS
from sparsity.plot import Curve, Panel, save

from gradwire.errors import UsageError
from scripts import script

FOLDER = Path(__file__).parents[3] / "benchmarks" / "sparse"
main = runpy.run_path(str(FOLDER / "main.py"))["main"]
SMALL = ("bert", "--scale", "0.0625")
drawing = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib"
)
PNG = b"\x89PNG"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    given = [
        {"scheme": "zen", "n": 4, "bytes": 3.5e6, "note": "kept"},
        {"scheme": "allgather", "n": 8, "bytes": 7e6, "seconds": 0.25},
        {"scheme": "columns", "n": 6, "bytes": 1e6},
    ]
    path.write_text(json.dumps(given))
    return path


# -- table and document ------------------------------------------------------------------------


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sparsity = expected("bert", scale=1 / 16)
    assert document["elements"] == sparsity.elements
    assert document["columns"] == 768
    assert document["measured"] == []
    assert [row["workers"] for row in document["rows"]] == [2**i for i in range(1, 13)]
    for row in document["rows"]:
        assert row["bytes"] == volumes(sparsity, row["workers"])
        assert row["gamma"] == sparsity.gamma(row["workers"])
        assert row["seconds"] == times(sparsity, row["workers"], 125e6, 1e-4)


def test_a_table_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(SMALL)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "bert: 1.465 M fp32 elements, 1.33% of one worker's not zero, in rows of 768"
    )
    assert lines[2].split()[:4] == ["workers", "γ", "dense,", "MB"]
    assert all(scheme in lines[2] for scheme in SCHEMES)
    assert len(lines) == 2 * (2 + 2 + 12) - 1
    sparsity = expected("bert", scale=1 / 16)
    assert lines[4].split()[2] == f"{volumes(sparsity, 2)['dense'] / 1e6:.3g}"
    assert lines[17].split()[2:4] == ["dense,", "ms"]
    assert lines[19].split()[2] == f"{1e3 * times(sparsity, 2, 125e6, 1e-4)['dense']:.3g}"


def test_workers_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--workers", "6", "3", "6", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["workers"] for row in rows] == [3, 6]
    assert "sparcml" not in rows[0]["bytes"]


def test_a_scheme_has_a_dash_where_it_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--workers", "3", "4"]) == 0
    three, four = (line.split() for line in capsys.readouterr().out.splitlines()[-2:])
    at = 2 + list(SCHEMES).index("sparcml")
    assert (three[at], four[at] == "–") == ("–", False)


@pytest.mark.parametrize("scheme", ["columns"])
def test_without_rows_there_is_no_column(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["uniform", "--scale", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "one by one" in out
    assert scheme not in out


def test_three_digits_that_count() -> None:
    assert costs._three_digits(1.234_567) == "1.23"
    assert costs._three_digits(987.654_321) == "988"
    assert costs._three_digits(12_345.678_901) == "12,346"


def test_rate_and_latency(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--rate", "100mbit", "--latency-ms", "2", "--workers", "8", "--json")
    assert main([*SMALL, *more]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["seconds"] == times(expected("bert", scale=1 / 16), 8, 12.5e6, 2e-3)
    assert row["seconds"]["zen"] == pytest.approx(row["bytes"]["zen"] / 12.5e6 + 4 * 2e-3)


# -- tensors -----------------------------------------------------------------------------------


def test_what_is_counted_is_near_the_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts are of each move's busiest rank; published formulas use COO, members index codes."""
    assert main(["nmt", "--scale", "0.01", "--count", "2", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    tensors = synthetic("nmt", 4, scale=0.01)
    assert document["facts"] == measure(tensors)
    assert {(p["scheme"], p["n"]) for p in document["measured"]} == {
        (scheme, n) for scheme in SUMS for n in (2, 4)
    }
    for scheme in ("dense", "zen_paper", "columns", "zen"):
        (point,) = (p for p in document["measured"] if (p["scheme"], p["n"]) == (scheme, 4))
        formula = volumes(measured(tensors), 4)[scheme]
        assert point["bytes"] == pytest.approx(formula, rel=0.05), scheme


def test_recorded_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file holds a list of tensors, another has rows as embeddings have them."""
    tensors = synthetic("bert", 3, scale=0.02)
    torch.save([x.bfloat16() for x in tensors[:2]], tmp_path / "first.pt")
    torch.save(tensors[2].to_sparse(1), tmp_path / "second.pt")
    files = [str(tmp_path / "first.pt"), str(tmp_path / "second.pt")]
    assert main(["--tensors", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["preset"] == "recorded"
    assert [row["workers"] for row in document["rows"]] == [2, 3]
    assert document["facts"] == measure(tensors)
    assert document["rows"][1]["bytes"] == volumes(measured(tensors), 3)
    assert {p["n"] for p in document["measured"]} == {3}
    assert main(["--tensors", *files]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith("of 3 workers' tensors: overlap 0.")
    assert "even pull imbalance" in line


def test_zeros_of_either_sign_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zeros of both signs are left out of counts and formulas; --count 3 adds a row of its own."""
    tensors = [x * -(x != 0).float() for x in synthetic("bert", 6, scale=0.02)]
    assert any(bool((x.view(torch.int32) == -(2**31)).any()) for x in tensors)
    torch.save(tensors, tmp_path / "six.pt")
    more = ("--tensors", str(tmp_path / "six.pt"), "--count", "3", "--json")
    assert main([*more]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["workers"] for row in document["rows"]] == [2, 3, 4, 6]
    (point,) = (p for p in document["measured"] if p["scheme"] == "columns")
    assert point["bytes"] == pytest.approx(document["rows"][1]["bytes"]["columns"], rel=0.1)
    assert main([*more[:3], "9"]) == 2
    assert "known for 1 to 6 workers; got 9" in capsys.readouterr().err


def test_what_is_not_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": 1}, tmp_path / "dict.pt")
    torch.save(torch.arange(4), tmp_path / "whole.pt")
    (tmp_path / "text.pt").write_text("no")
    torch.save([torch.ones(4), torch.tensor([1.0, float("nan")])], tmp_path / "nan.pt")
    torch.save(torch.ones(4, device="meta"), tmp_path / "meta.pt")
    for name, said in (
        ("nan.pt", "is finite, in fp32; one in"), ("meta.pt", "tensor of floats"),
        ("dict.pt", "has dict"), ("whole.pt", "tensor of floats"), ("text.pt", "cannot be read"),
        ("none.pt", "cannot be read"),
    ):  # fmt: skip
        assert main(["--tensors", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err


# -- measured points ---------------------------------------------------------------------------


def test_measured_points_stand_in_brackets(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--workers", "4", "6", "8", "--measured", str(points)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert ["(3.5)" in line for line in lines[4:7]] == [True, False, False]
    assert ["(1)" in line for line in lines[4:7]] == [False, True, False]
    assert ["(7)" in line for line in lines[4:7]] == [False, False, True]
    assert ["(250)" in line for line in lines[-3:]] == [False, False, True]


def test_measured_points_are_in_the_document(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--measured", str(points), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == json.loads(points.read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", "written in JSON"),
        ("{}", r"must be a list; got \{\}"),
        ('[{"scheme": "zen", "n": 4}]', r"\[0\] has bytes or seconds; got neither"),
        ('[{"scheme": "zen", "bytes": 4}]', r"\[0\] must have scheme, n; got no 'n'"),
        ('[{"scheme": "pigeon", "n": 4, "bytes": 1}]', r"\[0\]\.scheme must be one of .*'pigeon'"),
        ('[{"scheme": ["zen"], "n": 4, "bytes": 1}]', r"\[0\]\.scheme must be one of"),
        ('[{"scheme": "zen", "n": 0, "bytes": 1}]', r"\[0\]\.n must be a whole number, 1 to"),
        ('[{"scheme": "zen", "n": 4, "bytes": null}]', r"\[0\]\.bytes must be a finite number"),
        ('[{"scheme": "zen", "n": 4, "seconds": -1}]', r"\[0\]\.seconds must be a finite number"),
        ('{"scheme": "zen", "n": 4, "bytes": 1}', "must be a list"),
    ],
)
def test_points_that_cannot_be_read(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as raised:
        costs.read_measured(path)
    assert str(path) in str(raised.value)


def test_points_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must name a readable file"):
        costs.read_measured(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["gnn"], "a preset is one of"),
        (["bert", "--workers", "0"], "workers are counted from 1 to 1,048,576; got 0"),
        (["bert", "--scale", "0"], "scale multiplies"),
        (["bert", "--workers", str(10**20)], f"counted from 1 to 1,048,576; got {10**20}"),
        (["bert", "--scale", "1e20"], "above 0, 64 at most; got 1e+20"),
        (["bert", "--count", "0"], "workers are counted from 1 to 1,048,576; got 0"),
        (["bert", "--latency-ms", "-1"], "latency is 0 ms or more; got -1"),
        (["bert", "--latency-ms", "inf"], "latency is 0 ms or more; got inf"),
        (["bert", "--rate", "fast"], "a rate must be a number of bits per second"),
    ],
)
def test_what_is_wrong_is_said(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*more]) == 2
    assert said in capsys.readouterr().err


# -- the plot ----------------------------------------------------------------------------------


@drawing
def test_the_plot_is_written(points: Path, tmp_path: Path) -> None:
    path = tmp_path / "volumes.png"
    assert main([*SMALL, "--measured", str(points), "--plot", str(path)]) == 0
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
    panels = [Panel("MB", 1e6, curves), Panel("ms", 1e-3, curves[:1])]
    save(panels, "a title", path)
    text = path.read_text()
    for label in ("a title", "MB", "ms", *(curve.label for curve in curves)):
        assert f"<!-- {label} -->" in text


@drawing
def test_an_ending_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one of .*png.*; got 'x\.doc'\. Use 'x\.png'"):
        save([Panel("", 1.0, [Curve("a", [(2, 1.0)])])], "", tmp_path / "x.doc")


@drawing
def test_the_script_saves_draws_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [{"scheme": "zen", "n": 4, "bytes": 123_456}]
    (tmp_path / "bert-measured.json").write_text(json.dumps(points))
    monkeypatch.setattr(sys, "argv", ["tables", "bert", "--scale", "0.01", "--out", str(tmp_path)])
    runpy.run_path(str(FOLDER / "tables.py"), run_name="__main__")
    assert json.loads((tmp_path / "bert.json").read_text())["measured"] == points
    assert (tmp_path / "bert.png").read_bytes().startswith(PNG)
    assert "(0.123)" in capsys.readouterr().out


def test_without_matplotlib_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'gradwire\[plot\]'"):
        save([Panel("", 1.0, [Curve("a", [(2, 1.0)])])], "", tmp_path / "x.png")


# -- workspace ---------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["allgather", "zen", "columns"])
def test_workspace_is_what_the_page_says(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In units of the sum's own bytes it hardly depends on the size, so a small one will do."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8").partition("## Counted: workspace")[2]
    row = re.search(rf"^\| {member} \| ([\d.]+)", page, re.MULTILINE)
    assert row is not None
    with script("sparse", "workspace") as workspace:
        monkeypatch.setattr(workspace, "ELEMENTS", 1e5)
        assert workspace.peak("nmt", member) == pytest.approx(float(row[1]), abs=0.1)
