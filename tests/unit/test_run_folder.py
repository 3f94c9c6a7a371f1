"""Run folders as they are found: cut, mixed, of several lives, with clocks that differ."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from damage import damaged
from runs import PLAN, about, spans, step, write

from gradwire.errors import UsageError
from gradwire.report.run import Run
from gradwire.report.run_page import Shown, run_page
from gradwire.report.summary import summarize
from gradwire.run_folder import FORMAT, RankFile, number, path_of
from suites import first


def test_lines_come_back(tmp_path: Path) -> None:
    write(
        tmp_path, 0, ("about", about(rank=0)), ("plan", {"step": 0, "plan": PLAN}),
        ("step", step(0)), ("spans", spans(0)), ("log", {"step": 0, "at": 1.0, "numbers": {
            "loss": number(float("nan")), "rate": 0.5}}),
        ("event", {"step": 0, "at": 1.0, "what": "<script>"}),
    )  # fmt: skip
    run = Run(tmp_path)
    rank = run.first
    assert (run.world, run.problems) == (1, [])
    assert [(plan.step, plan.document) for plan in run.plans] == [(0, PLAN)]
    assert rank.steps[0].seconds == 0.03
    assert rank.logs[0][1].numbers["rate"] == 0.5
    assert rank.logs[0][1].numbers["loss"] != rank.logs[0][1].numbers["loss"]
    assert rank.events[0].what == "<script>"
    (span,) = run.trace([0]).spans
    assert (span.kind, span.label, span.bytes, span.seconds) == ("wire", "bucket 0", 40, 0.0005)


@pytest.mark.parametrize("kind", ["step", "spans"])
def test_a_line_that_is_cut_costs_that_line_alone(tmp_path: Path, kind: str) -> None:
    """A line may be cut at any byte; a job that continues begins a new line."""
    last = {"step": step(1), "spans": spans(1)}[kind]
    path = write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)), (kind, last))
    whole = path.read_bytes()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(begin, len(whole)):
        path.write_bytes(whole[:cut])
        run = Run(tmp_path)
        assert [row.step for row in run.first.steps] == [0]
        assert not run.problems, "it may be under way"
        write(tmp_path, 0, ("about", about(rank=0, step=7)), ("step", step(7)))
        again = Run(tmp_path)
        assert [row.step for row in again.first.steps][-1] == 7
        again.trace(list(again.first.lives[0].spans))
        is_damaged = begin < cut < len(whole) - 1
        assert len(again.problems) <= is_damaged
        assert kind == "spans" or len(again.problems) == is_damaged


def test_a_line_that_is_written_in_part_is_an_error(tmp_path: Path) -> None:
    """A disk that is about full takes the first bytes of a line, without an error."""
    path = write(tmp_path, 0, ("about", about(rank=0)))
    file, before = RankFile(tmp_path, 0), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.add("step", **step(0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.close()
    write(tmp_path, 0, ("step", step(1)))
    run = Run(tmp_path)
    assert [row.step for row in run.first.steps] == [1]
    assert len(run.problems) == 1


def test_a_child_that_outlives_its_rank_does_not_hold_the_file(tmp_path: Path) -> None:
    """As a worker of a DataLoader: forked while the rank records, and alive when it is gone."""
    killed, (ours, child_s) = RankFile(tmp_path, 0), socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        child_s.send(b"forked")
        child_s.recv(1)
        os._exit(0)
    child_s.close()
    ours.recv(6)
    try:
        killed.close()  # as the kernel closes it
        RankFile(tmp_path, 0).close()
    finally:
        ours.close()
        os.waitpid(child, 0)


@pytest.mark.parametrize("asked", [["-m", "jobs.train"], ["jobs/train.py"]])
def test_the_command_can_be_repeated(tmp_path: Path, asked: list[str]) -> None:
    """A module of a package may import its neighbours only if it is run by its name."""
    (tmp_path / "jobs").mkdir()
    script = "from gradwire.training.recording import _command; print(*_command())"
    (tmp_path / "jobs" / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, *asked, "--lr", "1"], cwd=tmp_path, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == [sys.executable, *asked, "--lr", "1"]


def test_a_start_that_another_has_replaced_is_named(tmp_path: Path) -> None:
    """A start that resumes a state saved before the former one's end is no problem."""
    write(tmp_path, 0, ("about", about(rank=0)), *(("step", step(n)) for n in range(9)))
    resumed = about(rank=0, step=6, start=2)
    write(tmp_path, 0, ("about", resumed), *(("step", step(n)) for n in range(6, 12)))
    assert Run(tmp_path).problems == []
    write(tmp_path, 0, ("about", about(rank=0, step=0, start=3)))
    assert Run(tmp_path).problems == [], "which has done nothing yet"
    write(tmp_path, 0, ("step", step(0)))
    (said,) = Run(tmp_path).problems
    assert "recorded steps 6 to 11; a later one began at the same step or before" in said
    assert [row.step for row in Run(tmp_path).first.steps] == [0]


def test_ranks_that_are_missing_are_named(tmp_path: Path) -> None:
    write(tmp_path, 2, ("about", about(rank=2, world=4)), ("step", step(0)))
    path_of(tmp_path, 3).write_bytes(b"")
    run = Run(tmp_path)
    assert run.first.rank == 2
    assert run.problems == [
        "2 of 4 ranks left no file here: 0, 1. Where machines share no disk, copy their files "
        "into one folder.",
        "left out, without a readable first line: rank-3.jsonl.",
    ]


def test_a_file_of_another_run_is_not_told_as_missing(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0, world=2, start=2)), ("step", step(0)))
    write(tmp_path, 1, ("about", about(rank=1, world=2)), ("step", step(0)))
    (said,) = Run(tmp_path).problems
    assert "rank 1 recorded nothing: what is here is of an earlier start, or of another" in said


ENDS = [(20, 1, True), (36, 1, False), (7, 8, False)]


@pytest.mark.parametrize(("until", "every", "is_told"), ENDS)
def test_a_file_that_ends_early_is_told(
    tmp_path: Path, until: int, every: int, is_told: bool
) -> None:
    """Of a rank that was killed, or a file that was cut; not of one that writes fewer rows."""
    write(tmp_path, 0, ("about", about(rank=0, world=2)), *(("step", step(n)) for n in range(40)))
    rows = (("step", step(n, steps=every)) for n in range(every - 1, until + 1, every))
    write(tmp_path, 1, ("about", about(rank=1, world=2)), *rows)
    said = [text for text in Run(tmp_path).problems if "rank 1 at step 20" in text]
    assert bool(said) is bool(Run(tmp_path).problems) is is_told


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="a run must be a folder"):
            Run(wrong)
    path_of(tmp_path, 0).write_bytes(b"\xff\xfe\x00 no line of ours\n[1, 2]\n3\n{}\n")
    with pytest.raises(UsageError, match="has none with a readable first line"):
        Run(tmp_path)


def test_another_version_says_so(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)))
    write(tmp_path, 1, ("about", about(rank=1, format=FORMAT + 1)), ("step", step(0)))
    run = Run(tmp_path)
    assert sorted(run.ranks) == [0]
    assert "must be 1 in this version of gradwire; got 2" in run.problems[0]


def test_a_later_life_does_steps_again(tmp_path: Path) -> None:
    """The job is killed after step 5 and resumed from a checkpoint of step 3."""
    first = [("step", step(n)) for n in range(6)]
    write(tmp_path, 0, ("about", about(rank=0)), *first, ("spans", spans(5)))
    again = [("step", step(n, seconds=0.5)) for n in range(3, 8)]
    write(tmp_path, 0, ("about", about(rank=0, step=3)), *again, ("spans", spans(7)))
    rank = Run(tmp_path).first
    assert [row.step for row in rank.steps] == list(range(8))
    assert [row.seconds for row in rank.steps] == [0.03] * 3 + [0.5] * 5


def test_spans_of_lost_steps_are_left_out(tmp_path: Path) -> None:
    """The later life has another plan, which sends less: what the first life did beyond its
    beginning would count as that plan's."""
    first = [line for n in range(9) for line in (("step", step(n)), ("spans", spans(n)))]
    write(tmp_path, 0, ("about", about(rank=0)), ("plan", {"step": 0, "plan": PLAN}), *first)
    resumed = about(rank=0, step=3, start=2)
    write(tmp_path, 0, ("about", resumed))
    assert Run(tmp_path).steps_with_spans() == list(range(9)), "it has done nothing yet"
    write(tmp_path, 0, ("step", step(3)), ("spans", {**spans(3), "spans": []}), ("step", step(4)))
    run = Run(tmp_path)
    assert run.steps_with_spans() == [0, 1, 2, 3]
    assert [span.bytes for span in run.trace([2, 3, 8]).spans] == [40]


def test_traces_are_on_the_first_rank_s_clock(tmp_path: Path) -> None:
    """Rank 1's clock is an hour ahead, and its recording began two seconds later."""
    own = {"clock_seconds": 3702.0, "ahead_seconds": 3600.0, "ahead_error_seconds": 1e-4}
    write(tmp_path, 0, ("about", about(rank=0, world=2, clock_seconds=100.0)), ("spans", spans(0)))
    write(tmp_path, 1, ("about", about(rank=1, world=2, **own)), ("spans", spans(0)))
    run = Run(tmp_path)
    assert [s.start_seconds for s in run.trace([0]).spans] == pytest.approx([0.0, 2.0])
    assert run.clock_error_seconds == 1e-4


@pytest.mark.parametrize("wrong_by", [0.0, 7200.0, -0.5])
def test_clocks_that_come_apart_are_told(tmp_path: Path, wrong_by: float) -> None:
    """Rank 1 comes 3 ms later to an all-gather, and nobody ends it before; in an exchange of pairs
    somebody may."""
    labels = ["bucket 0 [none | allgather] all_gather", "bucket 0 [none | gtopk] exchange"]
    for rank, start in ((0, 1000), (1, 4000)):
        rows = [
            [0, 0, 0, start, 9000 - start, 40, "world"],
            [0, 0, 1, 9000 + 2000 * rank, 1000, 40, "world"],
        ]  # fmt: skip
        seen = {"step": 0, "kinds": ["wire"], "labels": labels, "spans": rows}
        clock = {"clock_seconds": 100.0 + wrong_by * rank}
        write(tmp_path, rank, ("about", about(rank=rank, world=2, **clock)), ("spans", seen))
    run = Run(tmp_path)
    found = [span.start_seconds for span in run.trace([0]).spans]
    assert found == pytest.approx([0.001, 0.009, 0.004, 0.011])
    told = [text for text in run.problems if "clocks are" in text]
    assert bool(told) is bool(wrong_by)
    if wrong_by == 7200.0:
        assert "ranks' clocks are 7,199.995 s apart in step 0, or more" in told[0]


def test_a_run_is_followed(tmp_path: Path) -> None:
    """A run is read as `gradwire top` does: by lines, with late ranks and an incomplete line."""
    path = write(tmp_path, 0, ("about", about(rank=0, world=2)), ("step", step(0)))
    run = Run(tmp_path)
    assert len(run.problems) == 1
    write(tmp_path, 1, ("about", about(rank=1, world=2)))
    with path.open("ab") as file:
        file.write(b'{"kind":"event","step":1,"at":2')
    run.look()
    assert (sorted(run.ranks), run.first.events, run.problems) == ([0, 1], [], [])
    with path.open("ab") as file:
        file.write(b'.5,"what":"whole"}\n')
    run.look()
    run.look()
    assert [event.what for event in run.first.events] == ["whole"]
    assert [row.step for row in run.first.steps] == [0]


SAMPLES = {
    "about": about(rank=0), "plan": {"step": 0, "plan": PLAN},
    "step": step(1, residual_norm=1.0, skipped=0), "spans": spans(1),
    "log": {"step": 1, "at": 0.5, "numbers": {"loss": 1.0}},
    "event": {"step": 1, "at": 0.5, "what": "w"},
}  # fmt: skip


@pytest.mark.parametrize("every", first([5, 1]))
@pytest.mark.parametrize("kind", SAMPLES)
def test_what_is_damaged_is_left_out_or_works(tmp_path: Path, kind: str, every: int) -> None:
    """With each nasty value in each place, the page is made from the rest."""
    left_out = 0
    for i, (what, line) in enumerate(islice(damaged(SAMPLES[kind]), 0, None, every)):
        folder = tmp_path / f"{i}"
        path = write(folder, 0, ("about", about(rank=0)), ("step", step(0)), ("spans", spans(0)))
        with path.open("a", encoding="utf-8", errors="surrogatepass") as file:
            given = {"kind": kind, **line} if isinstance(line, dict) else line
            file.write(json.dumps(given, separators=(",", ":")) + "\n")
        try:
            run = Run(folder)
            found = summarize(run)
            assert found is not None
            if i % 7 == 0:
                run_page([Shown(found)]).html()
        except Exception as error:
            raise AssertionError(f"{kind}: {what}") from error
        left_out += bool(run.problems)
    assert left_out > 20 // every
