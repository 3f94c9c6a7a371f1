"""The page of `gradwire report -o`: it has everything, and text from files stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from runs import PLAN, about, spans, step, write
from test_documents import PLAN as planned
from test_documents import PREDICTION
from test_report import paced, run_of, told

from gradwire.network.demand import pattern_of
from gradwire.network.routing.route import route
from gradwire.network.saved import to_json
from gradwire.network.topologies import topology_of
from gradwire.plan import Plan
from gradwire.planner.profile import Profile
from gradwire.report import charts
from gradwire.report.charts import Line, Part
from gradwire.report.run import Run
from gradwire.report.run_page import Shown, run_page
from gradwire.report.summary import Summary, summarize
from gradwire.run_folder import OVER
from gradwire.trace import Span, Trace

EVIL = "</script><script>alert(1)</script>"


def shown(folder: Path) -> Summary:
    found = summarize(Run(folder))
    assert found is not None
    return found


def timeline(text: str) -> dict[str, Any]:
    found = re.search(r'id="timeline-data">(.*?)</script>', text)
    assert found is not None
    value: dict[str, Any] = json.loads(found[1])
    return value


def test_the_page_of_one_run(tmp_path: Path) -> None:
    text = run_page([Shown(shown(run_of(tmp_path)))]).html()
    assert "A step takes 30.0 ms" in text
    data = timeline(text)
    names = [step["name"] for step in data["steps"]]
    assert any("a usual one" in name for name in names)
    assert any("the longest" in name for name in names)
    rows = data["steps"][0]["rows"]
    assert [row["name"] for row in rows] == ["rank 0, lane 0", "rank 1, lane 0"]
    assert rows[0]["spans"] == [0, 500, 0, 0, 40]
    assert (data["kinds"], data["labels"]) == (["wire"], ["bucket 0"])
    assert "http" not in re.sub(r"http-equiv", "", text), "nothing is fetched"


def test_the_usual_step_is_none_of_the_first(tmp_path: Path) -> None:
    """Nearly no step has a row of its own but the first ones; nor is it one of an earlier plan."""
    write(paced(tmp_path), 0, ("plan", {"step": 48, "plan": PLAN}))
    names = [step["name"] for step in timeline(run_page([Shown(shown(tmp_path))]).html())["steps"]]
    usual, longest, first = (int(name.partition(":")[0]) for name in names)
    assert (usual >= 64, longest >= 64, first) == (True, True, 0)


@pytest.mark.parametrize(("seconds", "is_shown"), [(60.0, False), (0.05, True)])
def test_a_first_step_that_compiles_flattens_no_chart(
    tmp_path: Path, seconds: float, is_shown: bool
) -> None:
    rows = [("step", step(n, seconds=0.03 if n else seconds)) for n in range(40)]
    write(tmp_path, 0, ("about", about(rank=0)), *rows)
    text = run_page([Shown(shown(tmp_path))]).html()
    points = re.search(r'<polyline class="line s0" points="([^"]*)"', text)
    assert points is not None
    assert len(points[1].split()) == 39 + is_shown
    assert ("without first steps that are far longer" in text) is not is_shown


def test_runs_side_by_side(tmp_path: Path) -> None:
    dense, sparse = run_of(tmp_path / "dense", 0.06), run_of(tmp_path / "sparse", 0.03)
    text = run_page([Shown(shown(dense)), Shown(shown(sparse))]).html()
    assert re.search(r'class="verdict">It helped: sparse is 2\.\d+ times as fast as dense', text)
    assert "the mean loss of sparse is 1.45, of dense 1.45" in text
    assert text.count("<polyline") == 2 * 3, "seconds, and losses against steps and seconds"
    heads = re.findall('<th scope="col"[^>]*>(.*?)</th>', text)
    assert heads[:5] == ["run", "speed", "a step, ms", "median", "quartiles"]
    assert re.search(r"<tr><td>sparse</td><td>2\.\d\d×</td><td>30\.0</td>", text)
    back = run_page([Shown(shown(sparse)), Shown(shown(dense))]).html()
    assert "It did not help: dense takes 2.0" in back
    same = run_page([Shown(shown(sparse)), Shown(shown(sparse))]).html()
    assert "No difference shows" in same


def test_text_from_files_stays_text(tmp_path: Path) -> None:
    plan = {
        "format": 1, "lanes": 1, "buckets": [{
            "strategy": EVIL, "parameters": [{"name": EVIL, "shape": [2, 3], "dtype": EVIL}]}],
    }  # fmt: skip
    marked = spans(0) | {"labels": [EVIL]}
    what = {"step": 0, "at": 0.0, "what": EVIL}
    own = about(rank=0, host=EVIL, facts={"command": [EVIL], "folder": EVIL})
    write(
        tmp_path, 0, ("about", own), ("plan", {"step": 0, "plan": plan}), ("step", step(0)),
        ("spans", marked), ("event", what),
    )  # fmt: skip
    text = run_page([Shown(shown(tmp_path), story=EVIL)]).html()
    assert EVIL not in text
    assert text.count("<script") == 2
    assert timeline(text)["labels"] == [EVIL]


def test_what_was_predicted_stands_above(tmp_path: Path) -> None:
    found = shown(run_of(tmp_path))
    predicted = Trace(1, [Span(0, 1, "wire", "bucket 0", 0.001, 0.002)])
    rows = timeline(run_page([Shown(found, predicted=predicted)]).html())["steps"][0]["rows"]
    assert rows[0] == {"name": "predicted, lane 1", "rank": -1, "spans": [1000, 1000, 0, 0, 0]}


def test_a_prediction_stands_above_steps_of_its_plan_alone(tmp_path: Path) -> None:
    write(paced(tmp_path), 0, ("plan", {"step": 48, "plan": PLAN}))
    predicted = Trace(1, [Span(0, 1, "wire", "bucket 0", 0.001, 0.002)])
    page = run_page([Shown(shown(tmp_path), predicted=predicted)])
    above = {
        int(step["name"].partition(":")[0]): step["rows"][0]["name"].startswith("predicted")
        for step in timeline(page.html())["steps"]
    }
    assert above.pop(0) is False
    assert list(above.values()) == [True] * len(above) != []


@pytest.mark.parametrize(
    ("ages", "shown_age"),
    [({}, ""), ({"ages": [1.0]}, "step"), ({"ages": [99.7]}, "99.7 steps"),
     ({"ages": [None]}, ""), ({"ages": [2.0, 3.0]}, "")],
)  # fmt: skip
def test_buckets_say_what_they_send(
    tmp_path: Path, ages: dict[str, object], shown_age: str
) -> None:
    """Older versions did not write how old what is sent gets."""
    seen = spans(0) | {"labels": ["bucket 0 [bf16 | allreduce] all_reduce"]}
    write(
        tmp_path, 0, ("about", about(rank=0)), ("plan", {"step": 0, "plan": PLAN, **ages}),
        ("step", step(0)), ("spans", seen),
    )  # fmt: skip
    text = run_page([Shown(shown(tmp_path))]).html()
    assert "s milliseconds are those of rank 0, in some of the steps recorded" in text
    row = re.search(r"<tr><td class=\"text\">0: w</td>.*?</tr>", text)
    assert row is not None
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[0])
    assert cells == [
        "0: w",
        "bf16 | allreduce",
        "1",
        "20",
        "40 B",
        "2.0",
        shown_age,
        "0",
        "0.5",
        "0",
    ]


def test_a_table_s_rows_are_not_compared_with_all_of_it(tmp_path: Path) -> None:
    table = {"name": "w", "shape": [5000, 4], "dtype": "float32", "sparse": True}
    plan = {**PLAN, "buckets": [{"strategy": "none | allgather", "parameters": [table]}]}
    seen = spans(0) | {"labels": ["bucket 0 [none | allgather] all_gather"]}
    write(
        tmp_path, 0, ("about", about(rank=0)), ("plan", {"step": 0, "plan": plan}),
        ("step", step(0)), ("spans", seen),
    )  # fmt: skip
    text = run_page([Shown(shown(tmp_path))]).html()
    row = re.search(r"<td class=\"text\">0: w</td>.*?</tr>", text)
    assert row is not None
    assert re.findall(r"<td[^>]*>(.*?)</td>", row[0])[3:6] == ["20,000", "40 B", ""]


def test_a_folder_with_a_space_is_quoted(tmp_path: Path) -> None:
    facts = {"folder": "/my runs", "command": ["python", "a b.py"]}
    write(tmp_path, 0, ("about", about(rank=0, facts=facts)), ("step", step(0)))
    text = unescape(run_page([Shown(shown(tmp_path))]).html())
    assert "cd '/my runs'\npython 'a b.py'\n" in text
    assert "\n1 rank on 1 host: " in text
    assert "by the job's launcher" not in text
    ahead = {"ahead_seconds": -1e-9}
    write(tmp_path, 1, ("about", about(rank=1, world=2, **ahead)), ("step", step(0)))
    write(tmp_path, 0, ("about", about(rank=0, world=2, facts=facts)), ("step", step(0)))
    text = unescape(run_page([Shown(shown(tmp_path))]).html())
    assert (
        "\n\nThis is what each rank ran. Start it by the job's launcher, such as torchrun" in text
    )
    assert "-0.00 ms" not in text
    assert "the overlap is the part of it that nobody waits for" in text


def test_a_run_that_sends_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0, bytes_sent=0, bytes_across=0)))
    text = run_page([Shown(shown(tmp_path))]).html()
    assert "nothing, of a gradient of 100 B" in text
    assert "inf" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.S)


def test_a_run_that_was_never_seen_span_by_span(tmp_path: Path) -> None:
    write(tmp_path, 1, ("about", about(rank=1, world=2)), ("step", step(0)))
    text = run_page([Shown(shown(tmp_path))]).html()
    assert "1 of 2 ranks left no file here: 0" in text
    assert "timeline-data" not in text.partition("<script>")[0]
    assert "What it waits for is not known" in text
    assert "waits; for what is not known" in text
    assert '<rect class="k-wait" x=' in text
    assert '<rect class="k-other" x=' not in text, "lanes are not known to be waited for"


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = run_of(tmp_path / "run"), tmp_path / "report.html"
    code, _, err = told(capsys, run, "-o", file)
    assert (code, f"wrote {file}" in err) == (0, True)
    assert file.read_text().startswith("<!doctype html>")
    for option in ("--profile", "--routes"):
        code, _, err = told(capsys, run, option, "some.json")
        assert code == 2
        assert f"{option} adds" in err
        assert "got no -o" in err
    code, _, err = told(capsys, run, "-o", tmp_path / "nowhere" / "report.html")
    assert code == 2
    assert "a page needs a file in a writable folder" in err
    code, _, err = told(capsys, run, "-o", file, "--profile", "profile.json")
    assert code == 2
    assert "rank 0 recorded" in err


def test_a_network_plan_is_shown_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabric, flows = topology_of("leaf_spine(2, 4, 3)"), pattern_of("direct")(8, 8000)
    routes, file = tmp_path / "routes.json", tmp_path / "report.html"
    routes.write_text(to_json(route(flows, fabric, "coloured")))
    run = run_of(tmp_path / "run")
    code, _, err = told(capsys, run, run, "-o", file, "--routes", routes)
    assert code == 0, err
    text = file.read_text()
    assert text.count("<h2>How full links are</h2>") == 1
    said = f"The paths of {routes} are for 112 kB in all between 8 hosts"
    assert said in text
    assert "hashes: fullest" in text
    assert "planned: fullest" in text
    assert "are one draw of many" in text
    assert text.count('fill-opacity="') == 2 * 2 * 2 * 3
    code, _, err = told(capsys, run, "-o", file, "--routes", run / "rank-0.jsonl")
    assert code == 2
    assert "Plan them again" in err
    code, _, err = told(capsys, run, "-o", routes, "--routes", routes)
    assert code == 2
    assert "is also read by this command" in err


@pytest.mark.parametrize(("ranks", "code"), [(4, 0), (16, 2)])
def test_a_prediction_is_of_as_many_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: int, code: int
) -> None:
    example = Path(__file__).parents[2] / "examples" / "profile.json"
    plan = Plan.make(list(Profile.load(example).parameters), "none | allreduce")
    run, own = tmp_path / "run", about(rank=0, world=ranks, facts={OVER: ranks})
    document = {"step": 0, "plan": json.loads(plan.to_json())}
    write(run, 0, ("about", own), ("plan", document), ("step", step(0)), ("spans", spans(0)))
    for rank in range(1, ranks):
        own = about(rank=rank, world=ranks)
        write(run, rank, ("about", own), ("step", step(0)), ("spans", spans(0)))
    asked = "-o", tmp_path / "report.html", "--profile", example
    found, _, err = told(capsys, run, *asked)
    assert found == code, err
    assert ("got one of 4 for" in err) == bool(code)


@pytest.mark.parametrize("is_its_own", [True, False])
def test_why_the_plan_is_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_its_own: bool
) -> None:
    """The explanation that a plan carries is on the page, unless it is another plan's."""
    (group,) = PREDICTION["groups"]  # type: ignore[misc]
    facts = {"label": "w", "tensors": 1, "strategy": "topk(0.1)+ef | allgather"}
    story = {**PREDICTION, "groups": [{**group, **(facts if is_its_own else {})}]}
    plan = Plan((planned.buckets[-1],), (planned.strategies[-1],), 1, story)
    run, file = tmp_path / "run", tmp_path / "report.html"
    own = ("plan", {"step": 0, "plan": json.loads(plan.to_json())})
    write(run, 0, ("about", about(rank=0)), own, ("step", step(0)), ("spans", spans(0)))
    code, _, err = told(capsys, run, "-o", file)
    assert code == 0, err
    page = file.read_text()
    assert "Why this plan" in page
    assert ("no plan of these strategies can be shorter" in page) == is_its_own
    assert ("prediction must be of this plan" in page) != is_its_own


# -- charts --------------------------------------------------------------------------------


def test_charts_leave_out_what_is_no_number() -> None:
    nan, inf = float("nan"), float("inf")
    assert charts.lines([Line("a", [(0.0, nan), (1.0, inf)])], "x", "y") == ""
    found = charts.lines([Line("a", [(0.0, 1.0), (1.0, nan), (2.0, 3.0)])], "x", "<y>")
    assert len(re.search(r'points="([^"]*)"', found)[1].split()) == 2  # type: ignore[index]
    assert "&lt;y&gt;" in found
    assert "nan" not in found


@pytest.mark.parametrize("value", [5.0, 1.24, -3e6, 0.0, 2e-5])
def test_a_chart_of_one_point_has_room(value: float) -> None:
    """The point is seen, and ticks beside it are not all the same."""
    found = charts.lines([Line("a", [(5.0, value)]), Line("b", [])], "x", "y")
    assert re.search(r'points="\d+\.\d,\d+\.\d"', found)
    assert len(re.findall(r'<circle class="dot s0" cx="\d+\.\d" cy="\d+\.\d"', found)) == 1
    ticks = re.findall(r'class="tick end"[^>]*>([^<]*)<', found)
    assert len(set(ticks)) == len(ticks) > 1


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (lambda i: 1000.0 * i, ["0", "200,000", "400,000", "600,000", "800,000", "1,000,000"]),
        (lambda i: 0.5 * i, ["0", "100", "200", "300", "400", "500"]),
        (lambda i: 1e5 + 0.03 * i, ["100,000", "100,010", "100,020", "100,030"]),
        (lambda i: 2.3 + 1e-6 * i, ["2.3000", "2.3002", "2.3004", "2.3006", "2.3008", "2.3010"]),
        (lambda i: 1e12 * i, ["0", "2e+14", "4e+14", "6e+14", "8e+14", "1e+15"]),
    ],
)  # fmt: skip
def test_ticks_are_told_apart(at: Callable[[int], float], shown: list[str]) -> None:
    """On both axes."""
    points = [(at(i), at(i)) for i in range(1001)]
    found = re.findall(r'class="tick[^>]*>([^<]*)<', charts.lines([Line("a", points)], "x", "y"))
    assert found == [*shown, *shown]


def test_long_lines_are_thinned() -> None:
    many = [(float(i), float(i % 7)) for i in range(10_000)]
    found = charts.lines([Line("a", many)], "x", "y")
    assert len(re.search(r'points="([^"]*)"', found)[1].split()) == 400  # type: ignore[index]


def test_bars_are_to_one_scale() -> None:
    rows = [("one", [Part("wire", 3.0), Part("other", 1.0)]), ("two", [Part("wire", 1.0)])]
    found = charts.bars(rows, lambda x: f"{x:g} s")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)"', found)]
    assert widths == [480.0, 160.0, 160.0]
    assert "<title>wire: 3 s</title>" in found
    assert charts.bars([], str) == ""
