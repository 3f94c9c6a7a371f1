"""Run folders as they are found: cut, mixed, of several lives, of clocks that differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import about, spans, step, write

from gradwire.errors import UsageError
from gradwire.run_folder import FORMAT, Run, number, path_of


def test_lines_come_back(tmp_path: Path) -> None:
    write(
        tmp_path, 0, ("about", about(rank=0)), ("plan", {"step": 0, "plan": {"lanes": 1}}),
        ("step", step(0)), ("spans", spans(0)), ("log", {"step": 0, "at": 1.0, "numbers": {
            "loss": number(float("nan")), "rate": 0.5}}),
        ("event", {"step": 0, "at": 1.0, "what": "<script>"}),
    )  # fmt: skip
    run = Run.read(tmp_path)
    rank = run.first
    assert (run.world, run.problems, run.plans) == (1, [], [(0, {"lanes": 1})])
    assert rank.steps[0].seconds == 0.03
    assert rank.logs[0].numbers["rate"] == 0.5
    assert rank.logs[0].numbers["loss"] != rank.logs[0].numbers["loss"]
    assert rank.events[0].what == "<script>"
    (span,) = run.trace([0]).spans
    assert (span.kind, span.label, span.bytes, span.seconds) == ("wire", "bucket 0", 40, 0.0005)


@pytest.mark.parametrize("kind", ["step", "spans"])
def test_a_line_that_is_cut_costs_that_line_alone(tmp_path: Path, kind: str) -> None:
    """At every byte; a job that goes on afterwards begins a line of its own."""
    last = {"step": step(1), "spans": spans(1)}[kind]
    path = write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)), (kind, last))
    whole = path.read_bytes()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(begin, len(whole)):
        path.write_bytes(whole[:cut])
        run = Run.read(tmp_path)
        is_lost = cut < len(whole) - 1
        assert [row.step for row in run.first.steps] == [0] if is_lost or kind == "spans" else [
            0, 1,
        ]  # fmt: skip
        assert len(run.problems) == (begin < cut < len(whole) - 1)
        write(tmp_path, 0, ("about", about(rank=0, step=7)), ("step", step(7)))
        assert [row.step for row in Run.read(tmp_path).first.steps][-1] == 7


def test_ranks_that_are_missing_are_named(tmp_path: Path) -> None:
    write(tmp_path, 2, ("about", about(rank=2, world=4)), ("step", step(0)))
    path_of(tmp_path, 3).write_bytes(b"")
    run = Run.read(tmp_path)
    assert run.first.rank == 2
    assert run.problems == [
        "3 of 4 ranks left no file here: 0, 1, 3. Where machines share no disk, copy their files "
        "into one folder."
    ]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="a run is a folder"):
            Run.read(wrong)
    path_of(tmp_path, 0).write_bytes(b"\xff\xfe\x00 no line of ours\n[1, 2]\n3\n{}\n")
    with pytest.raises(UsageError, match="has none with a first line"):
        Run.read(tmp_path)


def test_another_version_says_so(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)))
    write(tmp_path, 1, ("about", about(rank=1, format=FORMAT + 1)), ("step", step(0)))
    run = Run.read(tmp_path)
    assert sorted(run.ranks) == [0]
    assert "another version of gradwire" in run.problems[0]


def test_a_later_life_does_steps_again(tmp_path: Path) -> None:
    """Killed after step 5, resumed from a checkpoint of step 3."""
    first = [("step", step(n)) for n in range(6)]
    write(tmp_path, 0, ("about", about(rank=0)), *first, ("spans", spans(5)))
    again = [("step", step(n, seconds=0.5)) for n in range(3, 8)]
    write(tmp_path, 0, ("about", about(rank=0, step=3)), *again, ("spans", spans(7)))
    rank = Run.read(tmp_path).first
    assert [row.step for row in rank.steps] == list(range(8))
    assert [row.seconds for row in rank.steps] == [0.03] * 3 + [0.5] * 5


def test_traces_are_on_the_first_rank_s_clock(tmp_path: Path) -> None:
    """Rank 1's clock shows an hour more, and its recording began two seconds later."""
    own = {"clock_seconds": 3702.0, "ahead_seconds": 3600.0, "ahead_error_seconds": 1e-4}
    write(tmp_path, 0, ("about", about(rank=0, world=2, clock_seconds=100.0)), ("spans", spans(0)))
    write(tmp_path, 1, ("about", about(rank=1, world=2, **own)), ("spans", spans(0)))
    run = Run.read(tmp_path)
    assert [s.start_seconds for s in run.trace([0]).spans] == pytest.approx([0.0, 2.0])
    assert run.clock_error_seconds == 1e-4
