"""gradwire profile: it measures a job without a change to it, and ends it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from gradwire.cli.main import main
from gradwire.planner.profile import Profile
from gradwire.planner.variants import variants
from gradwire.report.run import Run
from gradwire.tuning.profile_only import WARM_UP, WATCHED

BEGINNING = """
import torch, torch.distributed as dist, gradwire
torch.set_num_threads(1)
dist.init_process_group("gloo")
"""
TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
gradwire.attach(model, "none | allreduce")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
print("trained to the end")
"""
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclass
class Done:
    """A command's exit code and output."""

    code: int
    stdout: str
    stderr: str


class Profiling(Protocol):
    """Runs gradwire profile on a script."""

    def __call__(self, *arguments: str, script: str | None, launcher: Sequence[str] = ()) -> Done:
        """script: the job's text. None: no command is given."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


@pytest.fixture
def profile(path: Path, capfd: pytest.CaptureFixture[str]) -> Profiling:
    job = path.with_name("job.py")

    def run(*arguments: str, script: str | None, launcher: Sequence[str] = ()) -> Done:
        job.write_text(script or "")
        command = [sys.executable, *launcher, str(job)] if script is not None else []
        code = main(["profile", "-o", str(path), *arguments, "--", *command])
        return Done(code, *capfd.readouterr())

    return run


@pytest.mark.full
def test_all_paths_of_a_compressor(
    profile: Profiling, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The profile has the moves and the compressor one by one, and the offered strategies as a
    whole, with their errors. It is enough to look for paths again."""
    pattern = "sign(scaled=True)+ef | paths"
    done = profile("--json", "--strategies", pattern, script=BEGINNING + TRAINING, launcher=TWO)
    assert done.code == 0, done.stderr
    assert f"'{pattern}': 12 of 174 paths fit" in done.stderr
    found = Profile.load(path)
    assert "sign(scaled=True)+ef | allgather" in found.strategies
    offered = [text for text in found.strategies if "steps(" in text]
    assert all(found.strategies[text].error is not None for text in offered)
    assert "sign(scaled=True)+ef in pieces @ cpu" in found.compressors
    asked = [
        "--profile",
        str(path),
        "--optimizer",
        "sgd",
        "--json",
        "--allow",
        pattern,
        "bf16 | allreduce",
    ]
    assert main(["plan", *asked]) == 0
    (told,) = json.loads(capfd.readouterr().out)["paths"]
    assert told["fitting"] == 10, "those that compress twice are not known to be sound"


@pytest.mark.full
def test_a_job_is_measured_and_ends(profile: Profiling, path: Path) -> None:
    text, folder = "topk(0.01)+ef | allgather", path.with_name("run")
    asked = ("--json", "--vary", "--record", str(folder), "--strategies", text)
    done = profile(*asked, script=BEGINNING + TRAINING, launcher=TWO)
    assert done.code == 0, done.stderr
    assert "trained to the end" not in done.stderr
    assert "a profile is of one model" not in done.stderr
    document = json.loads(done.stdout)
    found = Profile.load(path)
    assert document["path"] == str(path)
    assert document["parameters"] == json.loads(found.to_json())["parameters"]
    assert set(found.strategies) == {
        "none | allreduce", "bf16 | allreduce", text, *variants(text)
    }  # fmt: skip
    assert {cost.like for cost in found.strategies.values()} == {None, text}
    assert set(found.strategies[text].errors) == {"0.weight", "2.weight"}
    assert found.world == 2
    assert {p.name for p in found.parameters} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert found.parameters[0].name.startswith("2."), "the last layer's come first"
    assert 0 < found.ready[0].seconds <= found.ready[-1].seconds <= 1.05 * found.backward_seconds
    assert {"all_reduce float32 world", "all_gather uint8 world"} <= set(found.moves)
    assert set(found.compressors) == {"none @ cpu", "bf16 @ cpu", "topk(0.01)+ef @ cpu"}
    for cost in found.strategies.values():
        assert cost.wire(4096) > 0
        assert cost.wire(1e6) >= cost.wire(1e3)
    errors = [
        found.strategies[name].error for name in ("none | allreduce", "bf16 | allreduce", text)
    ]
    run = Run(folder)
    assert (run.world, run.problems) == (2, [])
    assert sum(row.steps for row in run.first.steps) >= WARM_UP + WATCHED
    assert errors[0] == 0.0
    assert 0.0 < errors[1] < 0.01 < errors[2], "of the job's gradients, with feedback"


def test_what_cannot_vary_is_said_and_nothing_measured_is_lost(
    profile: Profiling, path: Path
) -> None:
    alone = BEGINNING.replace(
        '"gloo"', '"gloo", init_method="tcp://localhost:0", rank=0, world_size=1'
    )
    done = profile("--vary", "--strategies", "bf16 | allreduce", script=alone + TRAINING)
    assert done.code == 1
    assert "those of the profile's 1 rank do not" in done.stderr
    assert "has all that was measured, without variants." in done.stderr
    assert "bf16 | allreduce" in Profile.load(path).strategies
    assert "must train until it is measured" not in done.stderr


def test_a_job_without_attach_is_an_error_with_the_next_step(
    profile: Profiling, path: Path
) -> None:
    path.write_text("of another day\n")
    done = profile(script="print('no gradwire here')")
    assert done.code == 2
    assert "must call gradwire.attach()" in done.stderr
    assert path.read_text() == "of another day\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "needs the command that starts the job"),
        (("--strategies", "topk(0.01) | nowhere"), "is not a collective"),
        (("-o", "/nowhere/profile.json"), "Make the folder"),
    ],
)
def test_bad_calls(profile: Profiling, arguments: tuple[str, ...], says: str) -> None:
    done = profile(*arguments, script=None if not arguments else "raise SystemExit(9)")
    assert done.code == 2
    assert says in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_job_s_own_failure_is_its_exit_code(
    profile: Profiling, options: tuple[str, ...]
) -> None:
    """As of a job of several ranks that nobody started: torch then asks for RANK."""
    done = profile(*options, script="raise SystemExit(9)")
    assert done.code == 9
    said = json.loads(done.stdout)["message"] if options else done.stderr
    assert "it ended with exit code 9. Correct what its output shows; if RANK" in said


INTERRUPTED = """
import os, signal, time
from pathlib import Path
os.kill(os.getppid(), signal.SIGINT)
time.sleep(1)
Path(__file__).with_name("ended").touch()
"""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is an exception, though processes in the background of a shell script ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def terminable() -> Iterator[None]:
    """SIGTERM is an exception where the command does not take it."""

    def leave(*_: object) -> None:
        raise RuntimeError("nobody took SIGTERM")

    before = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_job_has_time_to_end(profile: Profiling, path: Path) -> None:
    """A launcher that is killed leaves its ranks behind."""
    done = profile(script=INTERRUPTED)
    assert done.code == 130
    assert path.with_name("ended").exists()
    assert "waiting for the job to end" in done.stderr


@pytest.mark.usefixtures("interruptible")
def test_a_job_that_was_not_interrupted_is_ended(
    profile: Profiling, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.cli.profile._ENDING_SECONDS", 0.1)
    assert profile(script=INTERRUPTED.replace("sleep(1)", "sleep(60)")).code == 130
    assert not path.with_name("ended").exists()


TERMINATED = """
import os, signal, sys, time
from pathlib import Path

def end(*_):
    Path(__file__).with_name("told").touch()
    sys.exit()

signal.signal(signal.SIGTERM, end)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


@pytest.mark.usefixtures("terminable")
def test_a_terminated_command_ends_its_job(profile: Profiling, path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        profile(script=TERMINATED)
    assert ended.value.code == 143
    assert path.with_name("told").exists()


TWO_MODELS = """
left, right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
handles = [gradwire.attach(one, "none | allreduce") for one in (left, right)]
"""


def test_a_job_with_two_models_is_told_that_one_is_profiled(profile: Profiling) -> None:
    done = profile(script=BEGINNING + TWO_MODELS, launcher=TWO)
    said = "gradwire profile: a profile is of one model; the job attaches 2, and the first"
    assert done.stderr.count(said) == 1, "rank 0 says it, once"
