"""`gradwire.record`: what ranks write of their steps, and that a recording never harms
training."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import subprocess
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, gradients, loss_of, small
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

import gradwire
from gradwire.errors import PlanError, UsageError
from gradwire.plan import Plan
from gradwire.report.perfetto import events
from gradwire.report.run import Run
from gradwire.run_folder import RankFile, path_of
from gradwire.runtime.clocks import ahead_of_first, between
from gradwire.trace import TRAINING_THREAD, range_name
from gradwire.training import recording as recordings
from gradwire.training.recording import Pace, Recording

TOPK = "topk(0.1)+ef | allgather"


def exchanged(model: torch.nn.Module, step: int = 0) -> dict[str, Tensor]:
    model.zero_grad()
    loss_of(model, step).backward()
    return gradients(model)


def profiled() -> None:
    """Torch's profiler and our own export name what lanes do alike."""
    model, everything = small(), _ExperimentalConfig(profile_all_threads=True)
    with attached(model, TOPK, bucket_bytes=800) as handle:
        exchanged(model)
        with profile(
            activities=[ProfilerActivity.CPU], experimental_config=everything
        ) as profiler:
            exchanged(model)
        lanes = [span for span in handle.trace.spans if span.lane != TRAINING_THREAD]
        own = {f"gradwire {range_name(span.kind, span.label)}" for span in lanes}
    assert {"gradwire encode bucket 0", "gradwire wire bucket 0 all_gather"} <= own
    seen = {event.name for event in profiler.events()}
    assert {name for name in seen if name.startswith("gradwire ")} == own
    named = {event["name"] for event in events(handle.trace)}
    assert own <= {f"gradwire {name}" for name in named}


def test_torch_s_profiler_has_the_same_names(four: Ranks) -> None:
    four.run(profiled)


def recorded(folder: Path) -> None:
    """The file has all that the handle knows of four steps, all of which have lines."""
    model = small()
    with attached(model, TOPK, bucket_bytes=800) as handle:
        exchanged(model)  # before the recording, which must not count it
        with gradwire.record(handle, folder):
            before = handle.stats()
            for step in range(4):
                model.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                handle.log(loss=loss, rate=0.5)
            after, spans = handle.stats(), list(handle.trace.spans)
        handle.log(loss=7.0)  # after the recording, which must not count it
        exchanged(model)
    dist.barrier()
    run = Run(folder)
    assert run.world == run.averaged_over == dist.get_world_size()
    assert not run.problems
    assert sorted(run.ranks) == list(range(run.world))
    own = run.ranks[dist.get_rank()]
    assert [row.step for row in own.steps] == [1, 2, 3, 4]
    for name in ("compute", "backward", "encode", "wire", "decode"):
        total = sum(getattr(row, name) for row in own.steps)
        known = 5 * after[f"{name}_seconds"] - before[f"{name}_seconds"]
        assert total == pytest.approx(known, abs=1e-5), name
    assert {row.bytes_sent for row in own.steps} == {round(after["bytes_sent"])}
    assert {row.bytes_given for row in own.steps} == {after["bytes_given"]}
    assert own.steps[0].residual_norm is not None
    assert after["residual_norm"] > 0
    assert [log.step for _, log in own.logs] == [1, 2, 3, 4]
    assert own.logs[0][1].numbers["rate"] == 0.5
    assert run.steps_with_spans() == [1, 2, 3, 4]
    last = [s for s in run.trace([4]).spans if s.rank == dist.get_rank()]
    lanes = [s for s in last if s.lane != TRAINING_THREAD]
    assert [(s.lane, s.kind, s.label, s.bytes) for s in lanes] == [
        (s.lane, s.kind, s.label, s.bytes) for s in spans
    ]
    for read, known_span in zip(lanes, spans):
        assert read.seconds == pytest.approx(known_span.seconds, abs=3e-6)
    assert [s.kind for s in last if s.lane == TRAINING_THREAD] == ["compute", "backward", "wait"]
    if dist.get_rank() == 0:
        (plan,) = run.plans
        assert plan.step == 1
        assert Plan.from_json(json.dumps(plan.document)) == handle.plan
        sizes = [bucket.elements for bucket in handle.plan.buckets]
        sent = sum(size / age for size, age in zip(sizes, plan.ages, strict=True) if age)
        assert 1 < sum(sizes) / sent == pytest.approx(1 / after["density"])


def ending(folder: Path) -> None:
    """Most rows have no norm; the last has one, however few steps there were."""
    model = small()
    with attached(model, TOPK) as handle:
        recording = gradwire.record(handle, folder)
        recording._pace.every = 4
        for _ in range(6):
            exchanged(model)
        recording.close()
        norm = handle.stats()["residual_norm"]
    first, last = Run(folder).ranks[dist.get_rank()].steps[-2:]
    assert (first.step, last.step) == (4, 5)
    assert first.residual_norm is None
    assert last.residual_norm == pytest.approx(norm, rel=1e-5)


def optimized(folder: Path) -> None:
    """An optimizer that `attach` was not told of is known once it has stepped."""
    model, rank = small(), dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attached(model, TOPK) as handle, gradwire.record(handle, folder):
        step_alone(model, optimizer, 0)
        assert "optimizer" not in Run(folder).ranks[rank].about.facts
        step_alone(model, optimizer, 1)
        assert Run(folder).ranks[rank].about.facts["optimizer"] == "SGD"
    told = folder / "told"
    with attached(model, TOPK, optimizer="sgd") as handle, gradwire.record(handle, told):
        exchanged(model)
        assert Run(told).ranks[rank].about.facts["optimizer"] == "sgd"


def test_the_optimizer_is_recorded(two: Ranks, tmp_path: Path) -> None:
    two.run(optimized, tmp_path / "run")


def left_open(folder: Path) -> None:
    """The last steps are in a row, too, and nothing is told that may have ended before."""
    model, told = small(), list[int]()
    with attached(model, TOPK) as handle:
        recording = gradwire.record(handle, folder, to=lambda numbers, step: told.append(step))
        recording._pace.every = 4
        for _ in range(6):
            exchanged(model)
        recordings._leave_all()
        assert handle._session.recording is None
    assert [row.step for row in Run(folder).ranks[dist.get_rank()].steps] == [0, 4, 5]
    assert told == [0, 4]


def test_a_recording_that_nobody_closes_ends_with_the_process(two: Ranks, tmp_path: Path) -> None:
    two.run(left_open, tmp_path / "run")


def test_the_last_row_has_the_residuals_norm(two: Ranks, tmp_path: Path) -> None:
    two.run(ending, tmp_path / "run")


def test_what_a_handle_knows_is_in_the_folder(three: Ranks, tmp_path: Path) -> None:
    three.run(recorded, tmp_path / "run")


def changing(folder: Path) -> None:
    """Plans that change, a step that is not finite, and a second life."""
    model, rank = small(), dist.get_rank()
    with attached(model, TOPK) as handle:
        recording = gradwire.record(handle, folder)
        exchanged(model)
        handle.adopt(
            Plan.make([p for b in handle.plan.buckets for p in b.parameters], "bf16 | allreduce")
        )
        exchanged(model)
        model.zero_grad()
        (loss_of(model) * (math.nan if rank == 1 else 1.0)).backward()
        recording.close()
        recording.close()
        with gradwire.record(handle, folder):
            exchanged(model)
    dist.barrier()
    run = Run(folder)
    assert not run.problems
    rows = run.ranks[rank].steps
    assert [row.step for row in rows] == [0, 1, 2, 3]
    assert [row.skipped for row in rows] == [0, 0, 1, 0]
    assert rows[1].bytes_sent != rows[0].bytes_sent
    assert [event.step for event in run.ranks[rank].events] == [2]
    assert "not finite" in run.ranks[rank].events[0].what
    assert [plan.step for plan in run.plans] == [0, 1, 3]
    assert len(run.ranks[rank].lives) == 2


def test_plans_spoiled_steps_and_lives(two: Ranks, tmp_path: Path) -> None:
    two.run(changing, tmp_path / "run")


def refusing(folder: Path) -> None:
    model, rank = small(), dist.get_rank()
    with attached(model, TOPK) as handle:
        path = folder / f"rank {rank}"
        if rank == 1:
            path.write_text("a file is in the way")
        wrong = UsageError if rank == 1 else PlanError
        with pytest.raises(wrong, match="this rank must be able to write into the run folder"):
            gradwire.record(handle, path)
        with pytest.raises(wrong, match="a run folder must be a path; got None"):
            gradwire.record(handle, None if rank == 1 else folder / "run")  # type: ignore[arg-type]
        with pytest.raises(
            UsageError, match=r"takes what gradwire.attach returned.*; got a Small"
        ):
            gradwire.record(model, folder / "run")  # type: ignore[arg-type]
        with gradwire.record(handle, folder / "run"):
            with pytest.raises(UsageError, match="one recording at a time"):
                gradwire.record(handle, folder / "another")
            with pytest.raises(UsageError, match=r"handle.log takes numbers.*loss='high'"):
                handle.log(loss="high")  # type: ignore[arg-type]
            exchanged(model)
        with gradwire.record(handle, folder / "run"):  # a refused recording left nothing open
            exchanged(model)


def test_refused_on_every_rank(two: Ranks, tmp_path: Path) -> None:
    two.run(refusing, tmp_path)


def disk_full(folder: Path) -> None:
    """Rank 0 cannot write from the second step on; training and rank 1 go on."""
    model, rank = small(), dist.get_rank()
    with attached(model, TOPK) as handle:
        gradwire.record(handle, folder)
        exchanged(model)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            full = OSError(28, "No space left on device")
            with nullcontext() if rank else patch.object(RankFile, "add", side_effect=full):
                expected = [g.clone() for g in exchanged(model, 1).values()]
        assert [str(w.message) for w in told if "room on its disk" in str(w.message)] or rank
        assert all(g.isfinite().all() for g in expected)
        exchanged(model)
        assert (handle._session.recording is None) == (rank == 0)
        if rank == 0:
            handle.log(loss=1.0)
    dist.barrier()
    written = Run(folder).ranks
    assert [[row.step for row in written[r].steps] for r in (0, 1)] == [[0], [0, 1, 2]]


def disk_full_from_the_start(folder: Path) -> None:
    """Rank 1 can make its file, and not write to it."""
    model, rank = small(), dist.get_rank()
    if rank == 1:
        folder.mkdir(parents=True, exist_ok=True)
        path_of(folder, 1).symlink_to("/dev/full")
    with attached(model, TOPK) as handle:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            recording = gradwire.record(handle, folder)
        assert sum("No space left on device" in str(w.message) for w in told) == rank
        assert (handle._session.recording is None) == (rank == 1)
        exchanged(model)
        recording.close()
    if rank == 1:
        path_of(folder, 1).unlink()  # it has no end
    dist.barrier()
    assert [row.step for row in Run(folder).ranks[0].steps] == [0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_from_the_start_does_not_part_the_ranks(
    two: Ranks, tmp_path: Path
) -> None:
    two.run(disk_full_from_the_start, tmp_path / "run")


def test_a_full_disk_does_not_stop_training(two: Ranks, tmp_path: Path) -> None:
    two.run(disk_full, tmp_path / "run")


def telling(folder: Path) -> None:
    """A function in `to` raises once: the other function and the file go on."""
    model, told = small(), list[tuple[dict[str, float], int]]()

    def broken(numbers: dict[str, float], step: int) -> None:
        raise ValueError("no such run")

    with attached(model, TOPK) as handle, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with gradwire.record(handle, folder, to=(lambda *what: told.append(what), broken)):
            for _ in range(3):
                exchanged(model)
    assert len([w for w in warned if "raised ValueError: no such run" in str(w.message)]) == 1
    assert [step for _, step in told] == [0, 1, 2]
    assert told[0][0]["gradwire/step_seconds"] > 0
    assert len(Run(folder).ranks[dist.get_rank()].steps) == 3


class WandbRun:
    """Has what a run of Weights & Biases is known by; `wandb.log` is its method `log`."""

    def define_metric(self, name: str) -> None: ...

    def log(self, numbers: dict[str, float], step: int) -> None: ...


def harmless(folder: Path) -> None:
    """Warnings that are errors, `to` on one rank only, a working folder that is gone, an error
    while writing: the recording ends or goes on, and training goes on."""
    model, rank = small(), dist.get_rank()

    def broken(numbers: dict[str, float], step: int) -> None:
        raise ValueError("no such run")

    with attached(model, TOPK) as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        with gradwire.record(handle, folder, to=broken if rank else None):
            exchanged(model)
        with patch("os.getcwd", side_effect=FileNotFoundError), gradwire.record(handle, folder):
            exchanged(model)
        with pytest.raises((UsageError, PlanError), match=r"functions that take numbers|one"):
            gradwire.record(handle, folder, to="wandb" if rank else None)  # type: ignore[arg-type]
        with pytest.raises((UsageError, PlanError), match=r"Pass gradwire.metrics.Weights|one"):
            gradwire.record(handle, folder, to=WandbRun().log if rank else None)
        recording = gradwire.record(handle, folder)
        with patch.object(Recording, "_write_spans", side_effect=ZeroDivisionError):
            exchanged(model)
        assert handle._session.recording is None
        recording.close()
        recording = gradwire.record(handle, folder)
        full = OSError(errno.EDQUOT, "Disk quota exceeded")
        with (
            patch.object(RankFile, "close", side_effect=full),
            patch.object(Recording, "_write_spans", side_effect=ZeroDivisionError),
        ):
            exchanged(model)
        assert handle._session.recording is None
        assert all(g.isfinite().all() for g in exchanged(model).values())
    dist.barrier()
    assert [row.step for row in Run(folder).ranks[rank].steps] == [0, 1, 2, 3]


def test_a_recording_harms_nobody(two: Ranks, tmp_path: Path) -> None:
    two.run(harmless, tmp_path / "run")


def others(folder: Path) -> None:
    """A file that another process holds is refused; a forked child writes nothing into the
    file."""
    model = small()
    with attached(model, TOPK) as handle:
        path = path_of(folder, dist.get_rank())
        folder.mkdir(exist_ok=True)
        code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(); input()"
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            with pytest.raises(UsageError, match="another process is recording into it"):
                gradwire.record(handle, folder)
            holder.communicate(b"\n")
        with gradwire.record(handle, folder) as recording:
            exchanged(model)
            size = path.stat().st_size
            child = os.fork()
            if child == 0:
                handle.log(loss=1.0)
                recording.close()
                os._exit(0)
            os.waitpid(child, 0)
            assert path.stat().st_size == size
            exchanged(model)
    dist.barrier()
    assert [row.step for row in Run(folder).ranks[dist.get_rank()].steps] == [0, 1]


def test_a_file_has_one_writer(two: Ranks, tmp_path: Path) -> None:
    two.run(others, tmp_path / "run")


def slow_data(folder: Path) -> None:
    """The step after a change of plans has its compute time, too."""
    model = small()
    with attached(model, TOPK) as handle, gradwire.record(handle, folder):
        parameters = [p for b in handle.plan.buckets for p in b.parameters]
        for strategy in ("bf16 | allreduce", "none | allreduce", TOPK):
            exchanged(model)
            handle.adopt(Plan.make(parameters, strategy))
            time.sleep(0.02)
        handle._session.before_step = lambda: time.sleep(1.2)
        exchanged(model)
    dist.barrier()
    own = Run(folder).ranks[dist.get_rank()]
    assert all(0.02 < row.compute < 1.0 for row in own.steps[1:])
    (event,) = own.events
    assert (event.step, event.what[:38]) == (3, "before this step, measuring and changi")


def test_a_change_of_plans_hides_no_time(two: Ranks, tmp_path: Path) -> None:
    two.run(slow_data, tmp_path / "run")


def test_others_are_told(two: Ranks, tmp_path: Path) -> None:
    two.run(telling, tmp_path / "run")


def _rewound(folder: Path) -> None:
    """A state is loaded amid a recording, of an earlier step and of a later one."""
    model = small()
    with attached(model, TOPK) as handle, gradwire.record(handle, folder):
        saved = []
        for step in (0, 1, 2, 3, 4, 5, 6, 3, 4, 100, 101):
            if step != handle.step:
                handle.load_state_dict({**saved[0], "step": step, "taken": step})
            exchanged(model, step)
            handle.log(loss=float(step))
            saved.append(handle.state_dict())


def _rewound_alone(folder: Path) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    local = gradwire.LocalSteps(model, optimizer, every=2)
    with gradwire.record(local, folder):
        for number in range(6):
            step_alone(model, optimizer, number)
        kept = copy.deepcopy([model.state_dict(), local.state_dict()])
        for number in range(4):
            step_alone(model, optimizer, number)
        model.load_state_dict(kept[0])
        local.load_state_dict(kept[1])
        for number in range(6):
            step_alone(model, optimizer, number)
    local.detach()


def test_a_state_that_is_loaded_begins_another_life(two: Ranks, tmp_path: Path) -> None:
    two.run(_rewound, tmp_path / "handle")
    run = Run(tmp_path / "handle")
    for rank in run.ranks.values():
        assert [life.steps[-1].step for life in rank.lives] == [6, 4, 101]
        assert [log.step for _, log in rank.logs] == [0, 1, 2, 3, 4, 100, 101]
        assert rank.count == 7
    assert not run.problems
    two.run(_rewound_alone, tmp_path / "local")
    run = Run(tmp_path / "local")
    assert [sum(row.steps for row in life.steps) for life in run.first.lives] == [10, 6]
    assert [life.about.step for life in run.first.lives] == [0, 6]
    assert run.first.count == 12


def failing(folder: Path) -> None:
    """The reason why an exchange failed is the last entry of the file."""
    model = small()
    handle = gradwire.attach(model, TOPK, timeout_seconds=30)
    gradwire.record(handle, folder)
    exchanged(model)
    with (
        patch("gradwire.runtime.context.BucketContext.rounds", side_effect=ValueError("broken")),
        pytest.raises(ValueError, match="broken"),
    ):
        exchanged(model)
    handle.detach()
    dist.barrier()
    assert Run(folder).ranks[dist.get_rank()].events[-1].what == ("the exchange failed: broken")


def test_an_error_is_recorded(two: Ranks, tmp_path: Path) -> None:
    two.run(failing, tmp_path / "run")


def part_of_a_model() -> None:
    """The exchange of the last part ends while backward goes on with the first."""
    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    with attached(last, "none | allreduce") as handle:
        conductor = handle._session.conductor

        def until_over(gradient: Tensor) -> None:
            while not conductor.is_over:
                time.sleep(0.001)

        for _ in range(2):
            hidden = first(torch.ones(4, 4)) * 1.0
            hidden.register_hook(until_over)
            last(torch.relu(hidden)).sum().backward()
            last.zero_grad()
        stats = handle.stats()
    assert stats["steps"] == 2
    assert stats["exposed_seconds"] == 0.0


def test_what_ends_before_backward_is_not_waited_for(two: Ranks) -> None:
    two.run(part_of_a_model)


def clocks() -> tuple[float, float]:
    with attached(small(), TOPK) as handle:
        group = handle._session.performers[0].group
        ahead = ahead_of_first(group, torch.device("cpu"))
    return tuple(ahead)


def test_clocks_of_one_machine_are_one(three: Ranks) -> None:
    first, *others = three.run(clocks)
    assert first == (0.0, 0.0)
    for seconds, error in others:
        assert abs(seconds) <= error < 1.0


def test_a_clock_is_ahead_by_what_all_gathers_allow() -> None:
    first = torch.tensor([[0.0, 1.0], [2.0, 2.4]], dtype=torch.float64)
    own = torch.tensor([[100.2, 101.0], [102.1, 102.5]], dtype=torch.float64)
    # 100.2 - 1.0 <= ahead <= 101.0 - 0.0; 102.1 - 2.4 <= ahead <= 102.5 - 2.0
    found = between(first, own)
    assert found.seconds == pytest.approx((99.7 + 100.5) / 2)
    assert found.error_seconds == pytest.approx(0.4)


def test_a_pace_slows_down() -> None:
    pace = Pace(most=4, share=0.5)
    written = []
    for step in range(40):
        due = pace.is_due(step)
        pace.note(0.1 if due else 0.0, 1.0)
        written += [step] if due else []
    assert written == [0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32]
    dear = Pace(most=1000, share=0.01)
    for step in range(1000):
        dear.note(0.1 if dear.is_due(step) else 0.0, 1.0)
    assert dear.every == 16, "0.1 s of 16 s are less than one percent"


def alone(folder: Path, fragments: int, delay: int, steps: int) -> None:
    """With local steps, rows are of the optimizer's steps, and their times add up to the
    clock's."""
    model, every = small(), 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    local = gradwire.LocalSteps(
        model, optimizer, every, "topk(0.1)+ef | allgather", fragments=fragments, delay=delay
    )
    for number in range(3):  # a recording may begin amid a round
        step_alone(model, optimizer, number)
    given = sum(4.0 * p.numel() for p in model.parameters())
    began = time.perf_counter()
    with gradwire.record(local, folder):
        before = sums(local)
        for number in range(3, steps):
            step_alone(model, optimizer, number)
            local.log(loss=float(number))
            time.sleep(0.01)
        took = time.perf_counter() - began
        sent = {name: total - before[name] for name, total in sums(local).items()}
    local.log(loss=7.0)  # after the recording, which must not count it
    step_alone(model, optimizer, steps)
    local.detach()
    dist.barrier()
    run = Run(folder)
    assert not run.problems
    assert run.every == every / fragments
    own = run.ranks[dist.get_rank()]
    assert own.steps[0].step >= 3
    assert steps - delay - 1 <= own.steps[-1].step < steps
    assert sum(row.steps for row in own.steps) == own.steps[-1].step + 1 - 3
    assert 0.01 * (steps - 3 - delay) <= sum(row.steps * row.seconds for row in own.steps) <= took
    assert all(row.seconds == pytest.approx(row.compute + row.wait, abs=2e-6) for row in own.steps)
    assert {row.bytes_given for row in own.steps} == {given}
    for name in ("bytes_sent", "encode", "wire", "decode"):
        total = sum(row.steps * getattr(row, name) for row in own.steps)
        assert total == pytest.approx(sent[name], rel=1e-3, abs=20), name
    assert [log.step for _, log in own.logs] == list(range(3, steps))
    assert own.logs[-1][1].numbers["loss"] == steps - 1
    buckets, ages = run.plans[-1].document["buckets"], run.plans[-1].ages
    assert len(ages) == len(buckets)
    assert all(age >= every for age in ages if age is not None)
    seen = run.trace(run.steps_with_spans()).spans
    labels = {s.label.split(" [")[0] for s in seen if s.lane != TRAINING_THREAD}
    assert labels == {f"bucket {b}" for b in range(len(buckets))}, (
        labels,
        len(buckets),
        run.steps_with_spans(),
        [(r.step, r.steps) for r in own.steps],
    )
    assert {s.kind for s in seen if s.lane == TRAINING_THREAD} <= {"compute", "wait"}


def apart(folder: Path) -> None:
    """One rank begins an exchange when the other is a step further: it is of one step for both."""
    model, every = small(), 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    local = gradwire.LocalSteps(model, optimizer, every, "none | allreduce", delay=2)
    with gradwire.record(local, folder):
        for number in range(13):
            if dist.get_rank() and number % every in (0, every - 1):
                time.sleep(0.1)
            step_alone(model, optimizer, number)
        local.synchronize()
    local.detach()
    dist.barrier()
    assert Run(folder).steps_with_spans() == [3, 7, 11, 12]


def at_once(folder: Path) -> None:
    """Exchanges that end at once are written one after the other, or both would count the same
    sums."""
    model = small()
    local = gradwire.LocalSteps(model, torch.optim.SGD(model.parameters()), 4, "none | allreduce")
    with gradwire.record(local, folder) as recording:
        seen = list[str]()

        def row(*_: object) -> None:
            seen.append("begins")
            time.sleep(0.05)
            seen.append("ends")

        recording._recorded.row = row
        threads = [threading.Thread(target=recording.settle) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == 3 * ["begins", "ends"]
    local.detach()


def test_exchanges_that_end_at_once_are_written_in_turn(two: Ranks, tmp_path: Path) -> None:
    two.run(at_once, tmp_path)


def test_a_delayed_exchange_is_of_the_same_step_on_all_ranks(two: Ranks, tmp_path: Path) -> None:
    two.run(apart, tmp_path)


def sums(local: gradwire.LocalSteps) -> dict[str, float]:
    """Sums over all fragments since the beginning."""
    every = [fragment.handle._session.stats.sums for fragment in local.fragments]
    return {name: sum(of_one[name] for of_one in every) for name in every[0]}


def step_alone(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()


@pytest.mark.parametrize(("fragments", "delay", "steps"), [(1, 0, 24), (2, 1, 23)])
def test_local_steps_are_recorded_by_the_step(
    two: Ranks, tmp_path: Path, fragments: int, delay: int, steps: int
) -> None:
    two.run(alone, tmp_path, fragments, delay, steps)


def _closed_late(folder: Path) -> tuple[float, float]:
    """An evaluation, say, stands between the last exchange and the recording's end."""
    model, other = small(), small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    local = gradwire.LocalSteps(model, optimizer, every=2)
    with attached(other, TOPK) as handle:
        alone = gradwire.record(local, folder / "local")
        each = gradwire.record(handle, folder / "handle")
        for number in range(12):  # more than are written at once, so rows are due at the end
            step_alone(model, optimizer, number)
            exchanged(other, number)
        before = alone._now(), each._now()
        time.sleep(0.2)
        alone.close()
        each.close()
    local.detach()
    return before


def test_what_comes_after_the_last_exchange_is_of_no_step(two: Ranks, tmp_path: Path) -> None:
    befores = two.run(_closed_late, tmp_path)
    for number, name in enumerate(("local", "handle")):
        for rank, before in zip(Run(tmp_path / name).ranks.values(), befores):
            assert sum(row.steps for row in rank.steps) == 12
            assert rank.steps[-1].at <= before[number]
            assert sum(row.steps * row.seconds for row in rank.steps) < before[number] + 1e-3


def refused_alone(folder: Path, every: int | None) -> str:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    local = gradwire.LocalSteps(model, optimizer, every)
    if every is not None:
        local.detach()
    try:
        gradwire.record(local, folder)
    except UsageError as error:
        return str(error)
    return "recorded"


def test_local_steps_that_ended_or_are_being_found_are_not_recorded(
    two: Ranks, tmp_path: Path
) -> None:
    for every, told in ((2, "handle was detached"), (None, "Pass every, or record after these")):
        for said in two.run(refused_alone, tmp_path, every):
            assert told in said
