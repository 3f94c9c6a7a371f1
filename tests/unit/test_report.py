"""`gradwire report` on run folders: numbers, comparisons, timelines, errors."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import PLAN, about, spans, step, write
from torch.profiler import ProfilerActivity, profile, record_function

from gradwire.cli import main as cli
from gradwire.planner.story import ms
from gradwire.planner.verdict import faster
from gradwire.report import run_text
from gradwire.report.alarms import alarms
from gradwire.report.perfetto import events, side_by_side
from gradwire.report.run import Run
from gradwire.report.summary import Summary, ratio_of, summarize, waited
from gradwire.trace import TRAINING_THREAD, Span, Trace


def run_of(
    folder: Path, seconds: float = 0.03, ranks: int = 2, slow: float = 1.0, steps: int = 40
) -> Path:
    """A run with steps of so many seconds, ± a tenth; the last rank computes slowly."""
    for rank in range(ranks):
        lines: list[tuple[str, dict[str, Any]]] = [("about", about(rank=rank, world=ranks))]
        for n in range(steps):
            times = slow if rank == ranks - 1 else 1.0
            took = seconds * (0.9 + 0.02 * (7 * n % 11))
            lines.append(("step", step(n, seconds=took, compute=times * 0.4 * seconds)))
            lines.append(("spans", spans(n, 10_000 * n)))
            lines.append(("log", {"step": n, "at": 0.1 * n, "numbers": {"loss": 5.0 - 0.1 * n}}))
        write(folder, rank, *lines)
    return folder


def test_a_run_in_numbers(tmp_path: Path) -> None:
    found = summarize(Run(run_of(tmp_path, slow=2.0)))
    assert found is not None
    assert found.steps == 40
    assert found.seconds.mean == pytest.approx(0.03, rel=0.02)
    assert found.seconds.low < found.seconds.mean < found.seconds.high
    assert (found.bytes_sent, found.bytes_given, found.fewer) == (10, 100, 10.0)
    assert list(found.slow_ranks) == [1]
    assert found.losses[-1] == (39, pytest.approx(3.9), pytest.approx(1.1))


def test_nothing_to_tell(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0)))
    assert summarize(Run(tmp_path)) is None
    write(tmp_path, 0, ("step", step(0)))
    assert shown(tmp_path).seconds == (0.03, 0.03, 0.03, 0.03)


def test_noise_is_told_from_a_difference(tmp_path: Path) -> None:
    one, same, slower, short = (
        shown(run_of(tmp_path / name, seconds, steps=steps))
        for name, seconds, steps in (
            ("one", 0.030, 40), ("same", 0.0301, 40), ("slower", 0.045, 40), ("short", 0.1, 4)
        )
    )  # fmt: skip
    alike, found = ratio_of(one, same), ratio_of(slower, one)
    assert alike is not None
    assert alike.holds(1.0)
    assert found is not None
    assert not found.holds(1.0)
    assert found.low < 1.5 < found.high
    assert found.value == pytest.approx(1.5, rel=0.05)
    assert ratio_of(one, short) is None, "of four steps nothing is said"


def test_rows_weigh_as_many_steps_as_they_stand_for(tmp_path: Path) -> None:
    """Every fifth step takes 0.3 s more; rows of one step and rows of fifteen give the same."""
    for n in range(240):
        write_row(tmp_path / "single", n, 1, 0.04 + 0.3 * (n % 5 == 0))
    for n in range(14, 240, 15):
        write_row(tmp_path / "many", n, 15, 0.1)
    one, other = shown(tmp_path / "single"), shown(tmp_path / "many")
    assert one.seconds.mean == pytest.approx(0.1, rel=0.01)
    assert other.seconds.mean == pytest.approx(0.1)
    found = ratio_of(one, other)
    assert found is not None
    assert found.holds(1.0)


def test_how_much_faster_a_run_is_agrees_with_its_step(tmp_path: Path) -> None:
    """A short run's parts have unequally many steps; half of these are slower in one run."""
    ends = [0, 1, 2, 3, 4, 6, 8, 12, 15, 24, 32, 48, 64, 96, 128, 159]
    for last, n in zip([-1, *ends], ends):
        vary = 0.001 * (n % 3)
        write_row(tmp_path / "even", n, n - last, 0.03 + vary)
        write_row(tmp_path / "other", n, n - last, (0.03 if n < 64 else 0.09) + vary)
    one, other = shown(tmp_path / "even"), shown(tmp_path / "other")
    found = ratio_of(other, one)
    assert found is not None
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(other.seconds.mean / one.seconds.mean)
    assert one.seconds.mean == pytest.approx(0.031, abs=0.001)


def paced(folder: Path) -> Path:
    """160 steps as a recording writes short ones, half of the rows in the first 16. Those wait
    40 ms for decoding, later ones 10 ms for the wire."""
    ends = [0, 1, 2, 3, 4, 6, 8, 12, 15, 24, 32, 48, 64, 96, 128, 159]
    write(folder, 0, ("about", about(rank=0)))
    for last, n in zip([-1, *ends], ends):
        kind, wait = ("decode", 0.04) if n < 16 else ("wire", 0.01)
        micros = int(1e6 * wait)
        rows = [
            [-1, 0, 0, 0, 10_000, 0, ""], [-1, 1, 0, 10_000, micros, 0, ""],
            [0, 2, 1, 10_000, micros, 40, "world"],
        ]  # fmt: skip
        seen = {"kinds": ["compute", "wait", kind], "labels": ["", "bucket 0"], "spans": rows}
        times = {"seconds": 0.01 + wait, "compute": 0.01, "backward": 0.0, "wait": wait}
        write(folder, 0, ("step", step(n, steps=n - last, **times)), ("spans", {"step": n} | seen))
    return folder


def test_the_first_tenth_of_the_steps_does_not_count(tmp_path: Path) -> None:
    """However many of the rows they have."""
    found = shown(paced(tmp_path))
    assert (found.steps, found.seconds.mean) == (160, pytest.approx(0.02))
    assert found.waits_for == pytest.approx(
        {"wire": 0.01, "encode": 0.0, "decode": 0.0, "ranks": 0.0, "other": 0.0}
    )


def write_row(folder: Path, n: int, steps: int, seconds: float, **values: Any) -> None:
    first = [("about", about(rank=0))] if not (folder / "rank-0.jsonl").exists() else []
    write(folder, 0, *first, ("step", step(n, steps=steps, seconds=seconds, **values)))


def test_what_is_told_is_of_the_plan_in_force(tmp_path: Path) -> None:
    """Earlier steps used another plan; the prediction of this plan was met."""
    before = {"step": 0, "plan": PLAN}
    own = {"step": 20, "plan": {**PLAN, "lanes": 2, "prediction": {"seconds": 0.01}}}
    write(tmp_path, 0, ("about", about(rank=0)), ("plan", before))
    for n in range(20):
        write_row(tmp_path, n, 1, 0.3, bytes_sent=99)
    write(tmp_path, 0, ("plan", own))
    for n in range(20, 60):
        write_row(tmp_path, n, 1, 0.01, compute=0.005, backward=0.0, wait=0.005)
    write(tmp_path, 0, ("plan", {**own, "step": 60}))
    found = shown(tmp_path)
    assert (found.since, found.steps, found.bytes_sent) == (20, 60, 10)
    assert found.seconds.mean == pytest.approx(0.01)
    assert not [text for text in alarms(found) if "as its plan said" in text]
    assert "the numbers below: steps from 20 on, by the last of 2 plans" in run_text.one(found)


def test_who_is_gone_is_told_of_no_more(tmp_path: Path) -> None:
    """Four ranks, then only two of them, make the run."""
    for rank in range(4):
        write(tmp_path, rank, ("about", about(rank=rank, world=4)), ("step", step(0)))
    write(tmp_path, 0, ("spans", spans(0, 10_000)))
    write(tmp_path, 1, ("spans", spans(0, 20_000)))
    for rank in range(2):
        clock = {"clock_seconds": 1e5, "start": 2, "step": 1, "world": 2}
        write(tmp_path, rank, ("about", about(rank=rank, **clock)), ("step", step(1)))
    write(tmp_path, 0, ("spans", spans(1)), ("spans", spans(0)))
    run = Run(tmp_path)
    assert (sorted(run.ranks), run.world) == ([0, 1], 2)
    assert "ranks 2, 3 recorded nothing" in run.problems[0]
    assert run.steps_with_spans() == [], "no step was seen by both in one start"
    write(tmp_path, 1, ("spans", spans(1)))
    run.look()
    assert run.steps_with_spans() == [1]
    assert [s.start_seconds for s in run.trace([1]).spans] == [0.0, 0.0], "after no seconds"


def test_a_start_that_ended_before_its_first_step_changes_nothing(tmp_path: Path) -> None:
    """It had another plan and fewer ranks, and only rank 0 came to write of it."""
    write(tmp_path, 1, ("about", about(rank=1, world=2)), ("step", step(0)))
    first = [("about", about(rank=0, world=2)), ("plan", {"step": 0, "plan": PLAN})]
    write(tmp_path, 0, *first, *(("step", step(n)) for n in range(60)))
    before = shown(tmp_path)
    again = about(rank=0, start=2, step=50, world=1)
    plan = {"step": 50, "plan": {**PLAN, "lanes": 2}}
    write(tmp_path, 0, ("about", again), ("plan", plan))
    after = shown(tmp_path)
    assert (after.since, after.run.world, sorted(after.rows)) == (0, 2, [0, 1])
    assert run_text.one(after) == run_text.one(before)


def test_the_last_start_is_shown_though_rank_0_wrote_nothing_of_it(tmp_path: Path) -> None:
    """As where the disk of its machine was full."""
    for rank in range(2):
        write(tmp_path, rank, ("about", about(rank=rank, world=2)), ("step", step(0)))
    write(tmp_path, 1, ("about", about(rank=1, start=2, step=1, world=2)), ("step", step(1)))
    run = Run(tmp_path)
    assert sorted(run.ranks) == [1]
    assert "rank 0 recorded nothing" in run.problems[0]


def test_what_a_life_lost_is_no_loss_of_the_run(tmp_path: Path) -> None:
    for n in range(9):
        write_row(tmp_path, n, 1, 0.03)
        write(tmp_path, 0, ("log", {"step": n, "at": 0.1 * n, "numbers": {"loss": 1.0}}))
    write(tmp_path, 0, ("about", about(rank=0, start=2, step=5)), ("step", step(5)))
    write(tmp_path, 0, ("log", {"step": 5, "at": 0.2, "numbers": {"loss": 2.0}}))
    found = shown(tmp_path)
    assert [(n, loss) for n, _, loss in found.losses] == [*((n, 1.0) for n in range(5)), (5, 2.0)]
    assert found.losses[-1][1] == pytest.approx(0.8 + 0.2), "seconds go on"


def test_a_start_that_begins_anew_is_the_run(tmp_path: Path) -> None:
    """A start from a checkpoint of step 1000 is replaced by one from nothing, whose plan changes
    once, and which is recorded again later."""
    write(tmp_path, 0, ("about", about(rank=0, step=1000)))
    for n in range(1000, 1009):
        write_row(tmp_path, n, 1, 9.0)
    write(tmp_path, 0, ("about", about(rank=0, start=2)), ("plan", {"step": 0, "plan": PLAN}))
    for n in range(20):
        write_row(tmp_path, n, 1, 0.3)
    write(tmp_path, 0, ("plan", {"step": 20, "plan": {**PLAN, "lanes": 2}}))
    for n in range(20, 60):
        write_row(tmp_path, n, 1, 0.01)
    found = shown(tmp_path)
    assert (found.steps, found.since) == (60, 20)
    assert found.seconds.mean == pytest.approx(0.01)
    write(tmp_path, 0, ("about", about(rank=0, start=3, step=500)), ("step", step(500)))
    assert shown(tmp_path).steps == 61, "of those between them nothing is known"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (run_text.as_bytes(999.7e6), "1,000 MB"), (run_text.as_bytes(123.4e6), "123 MB"),
        (run_text.as_milliseconds(-0.1504), "-150.4"), (run_text.as_milliseconds(-1e-5), "-0.01"),
        (ms(0.9997), "1,000 ms"), (ms(1234.5), "1,234 s"), (ms(0.01234), "12.3 ms"),
        (faster(0.25), "300 % slower"), (faster(0.99), "1 % slower"),
    ],
)  # fmt: skip
def test_large_numbers_are_written_out(shown: str, text: str) -> None:
    assert shown == text


def test_what_is_fast_and_learns_less_has_not_helped(tmp_path: Path) -> None:
    dense, own = shown(run_of(tmp_path / "dense", 0.06)), tmp_path / "own"
    for n in range(40):
        write_row(own, n, 1, 0.03)
        write(own, 0, ("log", {"step": n, "at": 0.1 * n, "numbers": {"loss": 5.1 - 0.08 * n}}))
    said, _ = run_text.verdict([dense, shown(own)])
    assert re.search(r"own is 2.0\d times as fast as dense, .* ms, but it learns less", said)
    _, more = run_text.verdict([dense, shown(own)])
    assert "differ in: ranks 1 and 2" in " ".join(more)


def test_runs_differ_in_what_both_know(tmp_path: Path) -> None:
    """`attach` is not always told the optimizer; local steps always are."""
    runs = []
    for name, optimizer, cores in (("dense", None, 2), ("own", "SGD", 4)):
        facts = {"backend": "gloo", "device": "cpu", "optimizer": optimizer, "cores": cores}
        runs.append(tmp_path / name)
        write(runs[-1], 0, ("about", about(rank=0, facts=facts)), ("step", step(0)))
    _, more = run_text.verdict([shown(run) for run in runs])
    assert "Apart from their plans, own and dense differ in: cores 4 and 2." in more


def test_what_learns_less_in_a_step_may_be_ahead_in_equal_time(tmp_path: Path) -> None:
    """Dense steps take 0.1 s, the other run's 0.05 s, in which the loss falls by 0.06, not 0.1."""
    dense, own = shown(run_of(tmp_path / "dense", 0.1)), tmp_path / "own"
    for n in range(60):
        write_row(own, n, 1, 0.05)
        write(own, 0, ("log", {"step": n, "at": 0.05 * n, "numbers": {"loss": 5 - 0.06 * n}}))
    _, said = run_text.verdict([dense, shown(own)])
    words = " ".join(said)
    assert "From second 2.36 to 2.95 of each" in words
    assert "the mean loss of own is 1.79, of dense 2.35." in words


@pytest.mark.parametrize(("bad", "less"), [(range(39, 40), True), (range(30, 33), False)])
def test_a_loss_that_is_not_finite_is_no_success_but_single_ones_are_left_out(
    tmp_path: Path, bad: range, less: bool
) -> None:
    dense, own = shown(run_of(tmp_path / "dense", 0.06)), tmp_path / "own"
    for n in range(40):
        write_row(own, n, 1, 0.03)
        loss = "nan" if n in bad else 5.0 - 0.1 * n
        write(own, 0, ("log", {"step": n, "at": 0.1 * n, "numbers": {"loss": loss}}))
    assert run_text.learns_less(dense, shown(own)) is less
    _, said = run_text.verdict([dense, shown(own)])
    assert any("the mean loss of own is nan" in text for text in said) is less


@pytest.mark.parametrize("last", [1e308, -1e308])
def test_losses_whose_sums_overflow_are_as_good_as_infinite(tmp_path: Path, last: float) -> None:
    dense, own = shown(run_of(tmp_path / "dense", 0.06)), tmp_path / "own"
    for n in range(80):
        write_row(own, n, 1, 0.03)
        write(own, 0, ("log", {"step": n, "at": 0.1 * n, "numbers": {"loss": last}}))
    both = [dense, shown(own)]
    assert f"mean loss of own is {math.copysign(math.inf, last)}" in run_text.several(both)
    assert run_text.learns_less(*both)
    assert run_text.several(both[::-1])


def test_exchanges_that_took_no_time_would_leave_the_slowest_rank(tmp_path: Path) -> None:
    """The others wait for it, so sending less does not help."""
    for rank in range(2):
        write(tmp_path, rank, ("about", about(rank=rank, world=2)))
        for n in range(40):
            times = {"compute": 0.1 * rank, "backward": 0.003, "wait": 0.1 * (1 - rank)}
            write(tmp_path, rank, ("step", step(n, seconds=0.103, **times)))
    _, said = run_text.verdict([shown(tmp_path)])
    words = " ".join(said)
    assert "a step would take 103.0 ms, as long as rank 1 computes: 1.00 times" in words
    assert "Computing of rank 1, for which the others wait, limits it now" in words


def shown(folder: Path) -> Summary:
    found = summarize(Run(folder))
    assert found is not None
    return found


def test_what_is_waited_for() -> None:
    """With two lanes, 3 s are on the wire, 1 s more is encoding, and in 1 s nothing is done."""
    trained = [
        Span(0, TRAINING_THREAD, "wait", "", 10.0, 15.0),
        Span(1, TRAINING_THREAD, "wait", "", 12.0, 15.0),
    ]  # fmt: skip
    lanes = [
        Span(0, 0, "encode", "b", 9.0, 11.0), Span(0, 0, "wire", "b", 11.0, 13.0),
        Span(0, 1, "wire", "b", 12.0, 14.0), Span(0, 1, "decode", "b", 12.5, 13.5),
        Span(1, 0, "encode", "b", 10.0, 15.0),
    ]  # fmt: skip
    found = waited(Trace(2, trained + lanes))
    assert found == {"wire": 3.0, "encode": 1.0, "decode": 0.0, "ranks": 0.0, "other": 1.0}
    assert waited(Trace(2, lanes)) is None


def test_who_waits_for_a_rank_does_not_wait_for_the_wire() -> None:
    """Rank 1 begins the first of two moves 3 s later; who is in a group is not known."""
    trained = [Span(0, TRAINING_THREAD, "wait", "", 1.0, 7.0)]
    lanes = [
        Span(0, 0, "wire", "b", 1.0, 5.0), Span(0, 0, "wire", "b", 5.0, 6.0),
        Span(1, 0, "wire", "b", 4.0, 5.0), Span(1, 0, "wire", "b", 5.0, 6.0),
        Span(0, 0, "wire", "c", 6.0, 7.0, group="node"),
        Span(1, 0, "wire", "c", 9.0, 9.5, group="node"),
    ]  # fmt: skip
    found = waited(Trace(2, trained + lanes))
    assert found == {"wire": 3.0, "encode": 0.0, "decode": 0.0, "ranks": 3.0, "other": 0.0}


def test_steps_in_which_nobody_waits_count(tmp_path: Path) -> None:
    """An exchange may end before backward does. The parts are those of a mean wait."""
    write(tmp_path, 0, ("about", about(rank=0)))
    for n in range(4):
        seen = {"kinds": ["wire", "wait"], "labels": ["bucket 0", ""]}
        rows = [[0, 0, 0, 0, 8000, 40, "world"], [-1, 1, 1, 4000, 4000, 0, "world"]]
        own = {"step": n, **seen, "spans": rows if n == 3 else rows[:1]}
        write(tmp_path, 0, ("step", step(n, wait=0.004 * (n == 3))), ("spans", own))
    found = shown(tmp_path)
    assert found.waits_for["wire"] == pytest.approx(0.001) == found.waits.mean


def test_events_are_counted_with_their_like(tmp_path: Path) -> None:
    whats = ["a gradient was not finite"] * 3 + ["the exchange failed: lost"]
    happened = [("event", {"step": n, "at": 0.1 * n, "what": w}) for n, w in enumerate(whats)]
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)), *happened)
    assert [text for text in alarms(shown(tmp_path)) if text.startswith("rank 0, step 3")] == [
        "rank 0, step 3: the exchange failed: lost"
    ]
    write(tmp_path, 0, happened[1])
    assert "rank 0, step 1: a gradient was not finite (4 such events)" in alarms(shown(tmp_path))


def test_events_of_a_timeline() -> None:
    trained = Span(3, TRAINING_THREAD, "backward", "", 1.0, 1.5)
    moved = Span(3, 1, "wire", "bucket 7 [topk(0.01)+ef | gtopk] exchange", 1.2, 1.4, 640, "cross")
    found = events(Trace(4, [trained, moved]), {3: "rank 3 on <b>"}, zero_seconds=1.0)
    assert [e["args"] for e in found if e["ph"] == "M"] == [
        {"name": "rank 3 on <b>"}, {"sort_index": 3}, {"name": "trains"}, {"name": "lane 1"},
    ]  # fmt: skip
    backward, wire = (e for e in found if e["ph"] == "X")
    assert (backward["name"], backward["tid"], backward["ts"]) == ("backward", 1, 0)
    assert (wire["name"], wire["tid"]) == ("wire bucket 7 exchange", 3)
    assert (wire["ts"], wire["dur"]) == (pytest.approx(2e5), pytest.approx(2e5))
    assert wire["args"] == {"what": moved.label, "bytes": 640, "group": "cross"}


# -- the command ---------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["report", *map(str, words)])
    return code, *capsys.readouterr()


def test_one_of_a_kind_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"step": 0, "at": 0.0, "plan": PLAN}
    write(tmp_path, 0, ("about", about(rank=0)), ("plan", plan), ("step", step(0)))
    _, out, _ = told(capsys, tmp_path)
    assert "1 step on 1 of 1 rank, gloo" in out
    assert "from step 0: 1 bucket by bf16 | allreduce" in out
    assert "One rank has nobody to exchange with" in out
    assert "limits it now" not in out


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, run_of(tmp_path, slow=2.0))
    assert code == 0
    assert "40 steps on 2 of 2 ranks" in out
    assert "rank 1 computes 1.55 times as long as the others" in out
    assert "sends     10 B a step and rank, 10.0 times less than its gradient of 100 B" in out


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense, sparse = run_of(tmp_path / "dense", 0.06), run_of(tmp_path / "sparse", 0.03)
    _, out, _ = told(capsys, dense, sparse)
    assert "It helped: sparse is 2.00 times as fast as dense, 30.0 and 60.1 ms." in out
    assert re.search(r"run +speed +ms/step +median +quartiles ", out)
    assert re.search(r"^dense +1\.00× +60\.1 +60\.\d +5\d\.\d to 6\d\.\d ", out, re.MULTILINE)
    assert re.search(r"^sparse +2\.00× +30\.0 +30\.\d +2\d\.\d to 3\d\.\d ", out, re.MULTILINE)
    assert "If exchanges took no time, a step of sparse would take" in out
    _, out, _ = told(capsys, sparse, run_of(tmp_path / "same", 0.03))
    assert re.search(r"^same +1\.00× \(noise\) +30\.0 ", out, re.MULTILINE)
    _, out, _ = told(capsys, sparse, dense)
    assert "It did not help: dense takes 2.00 times as long as sparse" in out
    _, out, _ = told(capsys, "--json", dense, sparse)
    first, second = json.loads(out)["runs"]
    assert "first_over_this" not in first
    assert second["first_over_this"]["value"] == pytest.approx(2.0, rel=0.05)
    assert second["learns_less"] is False


def test_numbers_that_are_none_in_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = {"step": 0, "at": 0.0, "numbers": {"loss": "nan"}}
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)), ("log", nan))
    code, out, err = told(capsys, "--json", tmp_path)
    assert code == 0, err
    assert json.loads(out)["runs"][0]["last_loss"] == "nan"


def test_text_from_files_commands_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = {"step": 0, "at": 0.0, "what": "\x1b[2Jgone"}
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0)), ("event", evil))
    _, out, _ = told(capsys, tmp_path)
    assert "\x1b" not in out
    assert "\ufffd[2Jgone" in out


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [(None, [39]), ("7", [7]), ("3:5", [3, 4]), (":2", [0, 1]), ("38:", [38, 39])],
)
def test_a_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str | None, chosen: list[int]
) -> None:
    run, file = run_of(tmp_path / "run"), tmp_path / "t.json.gz"
    steps = [] if asked is None else ["--steps", asked]
    code, out, _ = told(capsys, run, "--perfetto", file, *steps)
    assert code == 0
    assert str(file) in out
    found = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    starts = sorted({e["ts"] for e in found if e["ph"] == "X"})
    assert starts == [1e4 * (n - chosen[0]) for n in chosen]
    assert {e["pid"] for e in found} == {0, 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "5:x"], r"the first step and one beyond the last; got '5:x'"),
        (["--steps", "90"], r"recorded span by span: 0, 1, 2.*, …; --steps 90 has none"),
        (["--torch-trace", "absent.json"], r"a trace of torch must be what.*absent.json"),
    ],
)  # fmt: skip
def test_what_a_timeline_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    run = run_of(tmp_path / "run")
    code, _, err = told(capsys, run, "--perfetto", tmp_path / "t.json", *words)
    assert code == 2
    assert re.search(said, err), err


def test_what_is_of_a_timeline_needs_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "run", steps=3)
    for words in (["--steps", "1"], ["--torch-trace", "absent.json"]):
        code, _, err = told(capsys, run, *words)
        assert code == 2
        assert "needs --perfetto; got no --perfetto" in err


@pytest.mark.parametrize(
    "damage",
    [b'{"traceEvents":[1],"baseTimeNanoseconds":5}',
     b'{"traceEvents":{"a":1},"baseTimeNanoseconds":5}',
     b'{"traceEvents":[{"ts":"1"}],"baseTimeNanoseconds":5}', b"[" * 100_000,
     b'{"traceEvents":[],"baseTimeNanoseconds":1e400}',
     gzip.compress(bytes(range(256)))[:12] + bytes([255] * 40)],
    ids=["numbers", "table", "text", "deep", "infinite", "zlib"],
)  # fmt: skip
def test_a_torch_trace_that_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    run, theirs = run_of(tmp_path / "run", steps=3), tmp_path / "torch.json"
    theirs.write_bytes(damage)
    words = ["--perfetto", tmp_path / "t.json", "--torch-trace", theirs]
    code, _, err = told(capsys, run, *words)
    assert code == 2
    assert "a trace of torch must be what its profiler's export_chrome_trace() wrote" in err


def test_traces_side_by_side_begin_together() -> None:
    traces = {name: Trace(3, [Span(2, 0, "wire", "x", begin, begin + 1.0)])
              for name, begin in (("a", 1.0), ("b", 5.0))}  # fmt: skip
    found = side_by_side(traces, lambda rank: f"host {rank}")
    names = [own["args"]["name"] for own in found if own["name"] == "process_name"]
    assert names == ["a: host 2", "b: host 2"]
    assert [(own["pid"], own["ts"]) for own in found if own["ph"] == "X"] == [(0, 0), (1, 0)]


def test_a_timeline_is_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run")
    code, _, err = told(capsys, run, run, "--perfetto", tmp_path / "t.json")
    assert code == 2
    assert "a timeline can show only one run; got 2" in err


def test_torch_s_events_stand_beside_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both were under way at the same time, so one file has them at the same place."""
    with profile(activities=[ProfilerActivity.CPU]) as found, record_function("marked"):
        clock, unix = time.perf_counter(), time.time()
        torch.ones(8).sum()
    theirs = tmp_path / "torch.json"
    found.export_chrome_trace(str(theirs))
    run, file = tmp_path / "run", tmp_path / "both.json"
    times = {"clock_seconds": clock, "unix_seconds": unix, "pid": os.getpid()}
    write(run, 0, ("about", about(rank=0, **times)), ("step", step(0)), ("spans", spans(0)))
    code, _, err = told(capsys, run, "--perfetto", file, "--torch-trace", theirs)
    assert code == 0, err
    every = json.loads(file.read_text())["traceEvents"]
    (marked,) = (e for e in every if e.get("name") == "marked" and e["ph"] == "X")
    (ours,) = (e for e in every if e.get("cat") == "gradwire")
    assert marked["ts"] - 1e4 <= ours["ts"] <= marked["ts"] + marked["dur"] + 1e4
    assert ours["pid"] == os.getpid() == marked["pid"]
    write(tmp_path / "other", 0, ("about", about(rank=0, pid=1)), ("spans", spans(0)))
    code, _, err = told(capsys, tmp_path / "other", "--perfetto", file, "--torch-trace", theirs)
    assert code == 2
    assert "a trace of torch must be of a rank of this run; none of [1]" in err


def test_torch_s_events_of_hosts_whose_processes_have_the_same_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In containers a rank is often the same process on each host. Each file is placed by the
    clock of its own rank, and no process is taken for another's."""
    run, files = tmp_path / "run", [tmp_path / "torch-1.json", tmp_path / "torch-0.json"]
    for rank, file in zip((1, 0), files):
        own = about(rank=rank, world=3, host=f"h{rank}", pid=7, unix_seconds=100.0 + rank)
        write(run, rank, ("about", own), ("step", step(0)), ("spans", spans(0)))
        on = [
            {"name": f"op{rank}", "ph": "X", "ts": 5, "dur": 1, "pid": 7, "tid": 1},
            {"name": f"kernel{rank}", "ph": "X", "ts": 5, "dur": 1, "pid": 0, "tid": 1},
            {"name": "process_name", "ph": "M", "pid": 7, "tid": 0, "args": {"name": "python"}},
            *({"name": "to", "ph": ph, "id": 3, "ts": 5, "pid": 7, "tid": 1} for ph in "sf"),
        ]
        document = {"traceEvents": on, "baseTimeNanoseconds": 101 * 10**9,
                    "distributedInfo": {"rank": rank}}  # fmt: skip
        file.write_text(json.dumps(document))
    write(run, 2, ("about", about(rank=2, world=3, pid=7)), ("step", step(0)), ("spans", spans(0)))
    later = tmp_path / "later.json"
    later.write_text(files[0].read_text().replace("op1", "later").replace("kernel1", "more"))
    code, _, err = told(capsys, run, "--perfetto", tmp_path / "t", "--torch-trace", *files, later)
    assert code == 0, err
    every = json.loads((tmp_path / "t").read_text())["traceEvents"]
    placed = {e["name"]: e for e in every if e["ph"] == "X"}
    assert placed["op0"]["ts"] - placed["op1"]["ts"] == pytest.approx(1e6)
    named = [e for e in every if e["name"] == "process_name"]
    names = {e["pid"]: e["args"]["name"][:6] for e in named}
    assert len(named) == 3, "a process has no other name than that of its rank"
    assert sorted(names.values()) == ["rank 0", "rank 1", "rank 2"]
    assert [names[placed[f"op{rank}"]["pid"]] for rank in (0, 1)] == ["rank 0", "rank 1"]
    assert placed["later"]["pid"] == placed["op1"]["pid"], "one rank's files belong together"
    assert len({placed[f"kernel{rank}"]["pid"] for rank in (0, 1)} | set(names)) == 5
    arrows = [(e["id"], e["ph"]) for e in every if e["name"] == "to"]
    assert len({number for number, _ in arrows}) == 3, "each file numbers them anew"
    assert [ph for _, ph in sorted(arrows)] == ["f", "s"] * 3


def test_runs_whose_folders_are_called_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = run_of(tmp_path / "a" / "run", 0.06), run_of(tmp_path / "b" / "run", 0.03)
    _, out, _ = told(capsys, one, other)
    assert f"It helped: {other} is 2.00 times as fast as {one}" in out


def test_a_run_that_is_recorded_anew_is_read_anew(tmp_path: Path) -> None:
    """Files may be shorter or longer than before, and nothing is left of ranks that are gone.
    Until something is written, the old run is shown."""
    run = Run(run_of(tmp_path, ranks=3, steps=4))
    again, short = about(rank=0, world=1, start=2, pid=7), tmp_path / "rank-0.jsonl"
    for steps in (2, 60):
        before = len(run.first.steps)
        for file in tmp_path.iterdir():
            file.unlink()
        run.look()
        assert len(run.first.steps) == before
        short.touch()
        run.look()
        assert len(run.first.steps) == before
        again["unix_seconds"] = float(steps)
        write(tmp_path, 0, ("about", again), *(("step", step(n)) for n in range(steps)))
        run.look()
        assert [row.step for row in run.first.steps] == list(range(steps))
        assert (list(run.ranks), run.world, run.problems) == ([0], 1, [])
    write(tmp_path, 0, ("step", step(60)))
    run.look()
    assert len(run.first.steps) == 61
