"""Pages of plans, networks and the demo, and the properties that all pages share."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_cli_plan import EXAMPLE, PLAN
from test_report_page import timeline as data_of

from gradwire.cli.main import main
from gradwire.demo.page import page as demo_page
from gradwire.demo.rows import ALONE, DDP
from gradwire.demo.summary import Result, Summary
from gradwire.demo.task import Point
from gradwire.lab import Cluster
from gradwire.report.page import Figure, Fold, Grid, Key, Page, Section
from gradwire.report.timeline import Step, timeline
from gradwire.trace import Span, Trace

EVIL = "</script><script>alert(1)</script>"
SIMULATED = [
    "network", "simulate", "--topology", "leaf_spine(4, 4, 4)", "--placement", "shuffled",
    "--bytes", "1e6",
]  # fmt: skip


def written(tmp_path: Path, *arguments: str) -> str:
    """Returns the page that a command writes."""
    path = tmp_path / "page.html"
    assert main([*arguments, "--html", str(path)]) == 0
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", text)
    return text


# -- any page ------------------------------------------------------------------------------


def test_all_text_is_escaped_and_only_drawings_are_markup() -> None:
    parts = [
        Figure("<svg><title>&lt;b&gt;</title></svg>", EVIL, [Key("box", "k-wire", EVIL)]),
        Grid([EVIL], [[EVIL]], text=[0]), Fold(EVIL, EVIL), Fold("table", Grid([EVIL], [[EVIL]])),
    ]  # fmt: skip
    text = Page(EVIL, EVIL, [Section(EVIL, parts, [EVIL])], [EVIL], [EVIL]).html()
    assert EVIL not in text
    assert text.count("<script") == 1
    assert "<svg><title>&lt;b&gt;</title></svg>" in text
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(1)") == 15


def test_a_fold_may_be_open_and_columns_of_words_are_set_left() -> None:
    grid = Grid(["a", "b"], [["1", "2"]], text=[1])
    text = Page("t", "v", [Section("s", [Fold("f", grid, is_open=True)])]).html()
    assert "<details open><summary>f</summary>" in text
    assert '<th scope="col">a</th><th scope="col" class="text">b</th>' in text
    assert '<td>1</td><td class="text">2</td>' in text


def test_a_timeline_leaves_out_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.report.timeline.MOST_SPANS", 3)
    two = Trace(2, [Span(r, 0, "wire", EVIL, 1.0, 2.0, 5.0) for r in range(2)])
    found = timeline([Step("one", two), Step("other", two)])
    assert found is not None
    assert (found.steps, found.ranks) == (["one"], {0: "rank 0", 1: "rank 1"})
    assert "<" not in found.data
    assert timeline([]) is None
    assert not found.is_cut
    monkeypatch.setattr("gradwire.report.timeline.MOST_SPANS", 1)
    cut = timeline([Step("one", two), Step("other", two)])
    assert cut is not None
    assert (cut.steps, cut.ranks, cut.is_cut) == (["one"], {0: "rank 0"}, True)


# -- a plan --------------------------------------------------------------------------------


def test_a_plan_shows_its_step_beside_those_of_fp32_and_bf16(tmp_path: Path) -> None:
    text = written(tmp_path, *PLAN, "--optimizer", "sgd")
    assert re.search(r'class="verdict">Compress \d+ of 51 tensors: [\d.]+× faster than bf16', text)
    assert "No plan of these strategies can be shorter than" in text
    data = data_of(text)
    assert [step["name"] for step in data["steps"]] == ["the plan", "tuned fp32", "tuned bf16"]
    names = [row["name"] for row in data["steps"][0]["rows"]]
    assert names == ["trains", "lane 0"]
    trains = data["steps"][0]["rows"][0]["spans"]
    assert [data["kinds"][kind] for kind in trains[2::5]] == ["compute", "backward", "wait"]
    cells = re.findall(r"<tr><td>the plan</td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", text)
    step, computes, waits = map(float, cells[0])
    assert step == pytest.approx(computes + waits, abs=0.2)
    assert sum(trains[1::5]) == pytest.approx(1e3 * step, abs=100), "microseconds of its timeline"
    assert "head.weight" in text
    assert f"gradwire plan --profile {EXAMPLE}" in text


def test_a_table_of_plans(tmp_path: Path) -> None:
    asked = ["--workers", "2", "64", "--bandwidth", "100mbit", "10gbit", "--table"]
    text = written(tmp_path, *PLAN, *asked, "--optimizer", "sgd")
    pays = re.search(r'class="verdict">Compressing pays in (\d) of 4 cases of workers', text)
    assert pays is not None
    assert 0 < int(pays[1]) < 4
    assert "Where the decision changes" in text
    assert "Nowhere in this table." not in text
    asked[asked.index("100mbit")] = "400gbit"
    text = written(tmp_path, *PLAN, *asked, "--allow", "none | allreduce", "bf16 | allreduce")
    assert 'class="verdict">Compressing pays in 0 of 4 cases' in text
    assert "Nowhere in this table." in text
    assert re.search(r"<tr><td>64</td><td class=\"text\">", text)


@pytest.mark.parametrize("command", [PLAN, SIMULATED, ["network", "plan", *SIMULATED[2:]]])
def test_a_page_needs_a_folder_that_is_there(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--html", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "a page needs a file in a writable folder" in capsys.readouterr().err


# -- networks ------------------------------------------------------------------------------


def test_what_fails_meanwhile_and_whose_time_it_is_are_said(tmp_path: Path) -> None:
    text = written(tmp_path, *SIMULATED, "--fail", "leaf0-spine1@0.0001")
    assert "During the run leaf0-spine1@0.0001 fails, at that second; the loads are" in text
    assert re.search(r'class="verdict">By .* it takes [\d.]+ s', text)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text("[[job]]\nranks = 4\n[[job]]\nranks = 8\nstart_seconds = 9")
    command = [*SIMULATED[:4], "--jobs", str(jobs)]
    assert re.search(r'class="verdict">By .* the longest job takes', written(tmp_path, *command))


def test_a_network_shows_how_full_links_are(tmp_path: Path) -> None:
    text = written(tmp_path, "network", "plan", *SIMULATED[2:])
    assert re.search(r'class="verdict">Pin paths by &#39;\w+&#39;: [\d.]+ times as fast', text)
    assert "ecmp: fullest" in text
    assert text.count('fill-opacity="') == 2 * 2 * 4 * 4
    assert "To test it: run this collective ten times" in text


def read_timeline(path: Path) -> tuple[list[str], dict[int, list[dict[str, Any]]]]:
    """Returns the names of processes and the spans of each, by its number."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [own["args"]["name"] for own in events if own["name"] == "process_name"]
    spans = [own for own in events if own["ph"] == "X"]
    return names, {pid: [own for own in spans if own["pid"] == pid] for pid in range(len(names))}


@pytest.mark.parametrize("engine", ["flow", "packet"])
def test_messages_for_perfetto(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    path, asked = tmp_path / "t.json.gz", ["--scheme", "ecmp", "--scheme", "coloured", "--json"]
    command = [*SIMULATED, "--engine", engine, *asked, "--perfetto", str(path)]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert f"wrote {path}; open it in ui.perfetto.dev" in err
    names, spans = read_timeline(path)
    assert names == [f"{s}: host {n}" for s in ("ecmp", "coloured") for n in range(16)]
    for row, first in zip(json.loads(out)["rows"], (0, 16)):
        own = [span for pid in range(first, first + 16) for span in spans[pid]]
        assert min(span["ts"] for span in own) == 0
        last = max(span["ts"] + span["dur"] for span in own)
        assert last == pytest.approx(1e6 * row["seconds"], abs=2, rel=0.01)
        assert sum(span["args"]["bytes"] for span in own) == pytest.approx(30e6, rel=1e-3)
    assert spans[0][0]["name"].startswith("wire to host ")


def test_a_plan_for_perfetto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json.gz"
    command = [*PLAN, "--optimizer", "sgd", "--perfetto", str(path)]
    assert main([*command, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    names, spans = read_timeline(path)
    assert names == ["the plan", "tuned fp32", "tuned bf16"]
    last = max(span["ts"] + span["dur"] for span in spans[0])
    assert last == pytest.approx(1e6 * planned["seconds"], abs=10)
    assert main([*command, "--table"]) == 2
    assert "a table has no timeline that --perfetto could write" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [["--engine", "static"], ["--fail", "leaf0-spine1@0.0001"]])
def test_a_timeline_needs_time(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SIMULATED, *asked, "--perfetto", str(tmp_path / "t.json")]) == 2
    assert "a timeline needs an engine that simulates time" in capsys.readouterr().err
    assert not (tmp_path / "t.json").exists()


def test_messages_of_the_first_scheme_and_the_fastest(tmp_path: Path) -> None:
    text = written(tmp_path, *SIMULATED)
    data = data_of(text)
    names = [step["name"] for step in data["steps"]]
    verdict = re.search(
        r"By &#39;(.*?)&#39; it takes (.*?) s, by &#39;ecmp&#39; (.*?) times", text
    )
    assert verdict is not None
    assert names == ["ecmp", verdict[1]]
    ends = {
        step["name"]: max(sum(row["spans"][-5:-3]) for row in step["rows"])
        for step in data["steps"]
    }
    assert ends[verdict[1]] == pytest.approx(1e6 * float(verdict[2]), rel=1e-2)
    assert ends["ecmp"] / ends[verdict[1]] == pytest.approx(float(verdict[3]), rel=2e-2)
    assert data["steps"][0]["rows"][0]["name"] == "host 0, lane 0"


def test_packets_have_loads_and_messages_and_static_loads_alone(tmp_path: Path) -> None:
    text = written(tmp_path, *SIMULATED, "--engine", "packet", "--scheme", "ecmp")
    assert "ecmp: fullest" in text
    assert [step["name"] for step in data_of(text)["steps"]] == ["ecmp"]
    text = written(tmp_path, *SIMULATED, "--engine", "static", "--scheme", "ecmp")
    assert "ecmp: fullest" in text
    assert "timeline-data" not in text.partition("<script>")[0]


# -- the demo ------------------------------------------------------------------------------


def demo(seconds: float, arrives: float | None = None) -> Summary:
    """A demo's summary, with the seconds of a step, and those to reach DDP's loss."""

    def result(label: str, strategy: str, each: float, arrives: float | None) -> Result:
        curve = [Point(step, step * each, 7.0 - 0.01 * step) for step in (10, 20)]
        return Result(
            label, strategy, each, (each, each), 1e6, 6.8, arrives, 20, 20 * each, curve
        )  # fmt: skip

    own = result(EVIL, "topk(0.01)+ef | allgather", seconds, arrives)
    rows = [result(ALONE.label, "", 0.1, 2.0), result(DDP.label, "", 0.5, 10.0), own]
    return Summary(8_000_000, 20, 6.8, rows)


@pytest.mark.parametrize(
    ("arrives", "said"),
    [
        (4.0, "the loss of DDP fp32 2.5 times as soon, after 4.0 s, and DDP fp32 after 10.0."),
        (9.6, "the loss of DDP fp32 after 9.6 s, and DDP fp32 after 10.0."),
        (20.0, "the loss of DDP fp32 after 20.0 s, and DDP fp32 after 10.0."),
        (None, "and did not reach the loss of DDP fp32 in 20 steps."),
    ],
)
def test_the_demo_says_whether_it_helps(arrives: float | None, said: str) -> None:
    """It helps if it has learnt as much in less time, not by the time of its steps alone."""
    text = demo_page(demo(0.125, arrives), Cluster(4, "1gbit"), "gradwire demo").html()
    assert EVIL not in text
    assert said in text
    assert ("It helps:" in text) == (arrives == 4.0)
    assert ("No difference shows here:" in text) == (arrives == 9.6)
    assert "more than 5.0 times as fast" in text
    assert text.count("<polyline") == 2 * 3
