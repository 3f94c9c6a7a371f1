"""`gradwire.record`: an attached model records its steps in a run folder.

    session ── step over ──► Recording ── lines ──► run/rank-3.jsonl   (`gradwire.run_folder`)

A line takes about a hundred microseconds of its step (ten, if the processor's caches still had
what it needs), the spans of hundreds of buckets half a millisecond. So a recording writes every
step at first, and fewer later: see `Pace`.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import platform
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, Concatenate, ParamSpec

import torch
import torch.distributed as dist

from gradwire import kernels
from gradwire.errors import UsageError
from gradwire.progress import to_stderr
from gradwire.run_folder import FORMAT, OVER, RankFile, StepRow, number, path_of
from gradwire.runtime.clocks import ahead_of_first, of_first
from gradwire.training.agreed import same_everywhere
from gradwire.training.attach import Handle
from gradwire.training.fsdp import FsdpFrontend
from gradwire.training.local_steps import LocalSteps
from gradwire.training.recorded import Alone, Attached, Recorded
from gradwire.training.rows import micro, numbers
from gradwire.training.session import Session

ROWS, SPANS = 1024, 128
"""The number of rows, and of lines with spans, that are written at one pace."""
SHARE = 0.0005
"""The part of the time that lines of each kind may take."""
_FREE = 4, 2  # lines of the first pace, and of others, before their share is looked at
_NORM_EVERY = 16  # rows, as a residuals' norm reads all of their memory
_LATE_SECONDS = 10.0  # after which a row is written anyway, for viewers of a running job
_TOLD_SECONDS = 1.0
_OPEN: set[Path] = set()


To = Callable[[dict[str, float], int], object]
"""A function of numbers by name, and their step, as those of `gradwire.metrics` are."""


class Pace:
    """Selects the steps to write: every step, then every second, every fourth, …: half as many
    after `most` lines at one pace, or once lines took more than `share` of the time. So a run of
    any length has some thousand lines, and the steps of ranks that write fewer are among those of
    ranks that write more."""

    def __init__(self, most: int, share: float = SHARE) -> None:
        self.every, self._most, self._share = 1, most, share
        self._lines, self._spent, self._passed = 0, 0.0, 0.0

    def is_due(self, step: int) -> bool:
        """Whether this step is written."""
        return step % self.every == 0

    def note(self, spent_seconds: float, passed_seconds: float) -> None:
        """Count a step that took `passed_seconds`, of which its line took `spent_seconds`, 0 if it
        had none."""
        self._passed += passed_seconds
        if not spent_seconds:
            return
        self._lines += 1
        self._spent += spent_seconds
        free = _FREE[self.every > 1]
        is_dear = self._lines >= free and self._spent > self._share * self._passed
        if is_dear or self._lines >= self._most:
            self.every *= 2
            self._lines, self._spent, self._passed = 0, 0.0, 0.0


P = ParamSpec("P")


def _harmless(
    method: Callable[Concatenate[Recording, P], None],
) -> Callable[Concatenate[Recording, P], None]:
    """Makes an error in a method end the recording, never the step. In a process forked from the
    recording one the method does nothing."""

    @wraps(method)
    def guarded(self: Recording, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self._is_open or os.getpid() != self._pid:
            return
        try:
            with self._lock:  # exchanges of several fragments may end at once
                method(self, *args, **kwargs)
        except Exception as error:
            what = error.strerror if isinstance(error, OSError) else repr(error)
            self._stop()
            _warn(
                f"a recording needs room on its disk, and numbers that can be written; "
                f"{self._file.path}: {what}. This rank records nothing from step "
                f"{self._recorded.over + 1} on, while training goes on. Close the recordings of "
                "all ranks, and call gradwire.record again."
            )

    return guarded


class Recording:
    """A recording of one rank into a run folder, made by `gradwire.record`."""

    def __init__(
        self, recorded: Recorded, file: RankFile, names: dist.ProcessGroup | None,
        to: Iterable[To],
    ) -> None:  # fmt: skip
        self._recorded, session = recorded, recorded.sessions[0]
        self._lock = threading.RLock()
        self._file, self._rank, self._pid = file, dist.get_rank(names), os.getpid()
        self._pace, self._spans = Pace(ROWS), Pace(SPANS)
        self._most, self._written, self._turn = 0.0, -math.inf, session.step
        self._to, self._is_open = list(to), True
        group, begun = session.circle.group, torch.tensor([time.time_ns()], dtype=torch.int64)
        start = int(of_first(begun, group, session.device)[0])
        ahead = ahead_of_first(group, session.device)
        self._about: dict[str, Any] = {
            "format": FORMAT, "rank": self._rank, "world": dist.get_world_size(names),
            "start": start, "host": socket.gethostname(), "pid": self._pid,
            "ahead_seconds": ahead.seconds, "ahead_error_seconds": ahead.error_seconds,
            "facts": _facts(session) | recorded.facts,
        }  # fmt: skip
        self._begin()
        if self._is_open:
            for session in recorded.sessions:
                session.recording = self
            _GOING.add(self)

    @_harmless
    def _begin(self) -> None:
        """Write the first line and the plan. A full disk here must not part the ranks."""
        self._zero, self._last, self._optimizer = perf_counter(), self._recorded.over, ""
        self._over_at = 0.0
        now = {"unix_seconds": time.time(), "clock_seconds": self._zero}
        self._file.add("about", **self._about, **now, step=self._last + 1)
        self.adopted()
        self._recorded.begin()

    def log(self, numbers: Mapping[str, float]) -> None:
        """See `Handle.log`."""
        found = {name: number(_number(name, value)) for name, value in numbers.items()}
        self._log(max(0, self._recorded.over), found)

    @_harmless
    def _log(self, step: int, found: dict[str, float | str]) -> None:
        self._file.add("log", step=step, at=self._now(), numbers=found)

    def _note(self, step: int, what: str) -> None:
        """Write an event of a step that deserves attention, in a sentence."""
        self._file.add("event", step=max(0, step), at=self._now(), what=what)

    def close(self) -> None:
        """Write the last row and end the recording. Not collective; a second call does nothing."""
        self._end()
        self._stop()

    @_harmless
    def _end(self) -> None:
        """Write the last row, with the residuals' norm: a short run has few rows that have it."""
        self._row(has_norm=True)

    @_harmless
    def leave(self) -> None:
        """Write the last row as the process ends: what `to` calls may have ended before."""
        self._to.clear()
        self._row()
        self._stop()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- called by the session -------------------------------------------------------------

    @_harmless
    def settle(self) -> None:
        """Write a row of the steps since the last one, before the session's sums start anew."""
        self._row()

    @_harmless
    def adopted(self) -> None:
        """Write the plan that is in force from now on, on rank 0."""
        if self._rank == 0:
            plan, ages = json.loads(self._recorded.plan.to_json()), self._recorded.ages
            step, now = self._recorded.over + 1, self._now()
            self._file.add("plan", step=step, at=now, plan=plan, ages=ages)

    @_harmless
    def moved(self) -> None:
        """Go on as if the job had started again, if a state of another step was loaded."""
        if self._recorded.over != self._last:
            self._row()
            self._about["start"] += 1  # on all ranks, as all load
            self._begin()

    @_harmless
    def left_out(self, seconds: float) -> None:
        """Note the time that finding and changing plans took before a step, if it is long."""
        if seconds > _TOLD_SECONDS:
            what = f"before this step, measuring and changing plans took {seconds:.1f} s"
            self._note(self._recorded.over + 1, what)

    @_harmless
    def step_over(self, session: Session, finite: bool, error: BaseException | None) -> None:
        """Write a step whose exchange has ended, and which is in the session's sums and trace."""
        took, steps = self._recorded.took(session)
        ending = self._recorded.ending(session)
        self._turn, self._last = session.step, max(self._last, ending)
        self._over_at, self._most = self._now(), max(self._most, took / steps)
        if error is not None:
            self._note(ending, f"the exchange failed: {error}")
        elif not finite:
            self._note(
                ending,
                "a gradient was not finite, so averages are NaN on every rank: "
                + (
                    "the GradScaler skips the step"
                    if session.scaler is not None
                    else "an optimizer's step with them makes weights NaN, too"
                ),
            )
        is_late = perf_counter() - self._written > _LATE_SECONDS
        self._pace.note(self._timed(self._row, self._pace.is_due(self._turn) or is_late), took)
        spans = self._timed(
            lambda: self._write_spans(session, ending), self._spans.is_due(self._turn)
        )
        self._spans.note(spans, took)

    # -- lines -----------------------------------------------------------------------------

    @staticmethod
    def _timed(write: Callable[[], None], is_due: bool) -> float:
        if not is_due:
            return 0.0
        began = perf_counter()
        write()
        return perf_counter() - began

    def _row(self, has_norm: bool = False) -> None:
        """Write means over the steps since the last row, if there were any."""
        is_turn = self._turn % (_NORM_EVERY * self._pace.every) == 0
        looks = has_norm or self._written < 0 or is_turn
        if not self._optimizer and (found := self._recorded.optimizer):
            self._optimizer = found
            self._file.add("facts", facts={"optimizer": found})
        row = self._recorded.row(self._last, self._over_at, self._most, looks)
        if row is not None:
            self._most, self._written = 0.0, perf_counter()
            self._file.add("step", **row._asdict())
            self._tell(row)

    def _tell(self, row: StepRow) -> None:
        """Pass a row's numbers to the functions of `to`. One that raises is not called again."""
        for to in list(self._to):
            try:
                to(numbers(row), row.step)
            except Exception as error:
                self._to.remove(to)
                _warn(
                    f"a function passed as to= must accept a recording's numbers; {to!r:.80} "
                    f"raised {type(error).__name__}: {error}. It is not called again; the "
                    "recording and training go on."
                )

    def _write_spans(self, session: Session, step: int) -> None:
        spans = self._recorded.spans(session, self._rank)
        labels: dict[str, int] = {}
        kinds: dict[str, int] = {}
        rows = [
            [
                s.lane, kinds.setdefault(s.kind, len(kinds)),
                labels.setdefault(s.label, len(labels)), int(1e6 * (s.start_seconds - self._zero)),
                int(1e6 * s.seconds), int(s.bytes), s.group,
            ]
            for s in spans
        ]  # fmt: skip
        self._file.add("spans", step=step, kinds=list(kinds), labels=list(labels), spans=rows)

    def _now(self) -> float:
        return micro(perf_counter() - self._zero)

    def _stop(self) -> None:
        if self._is_open and os.getpid() == self._pid:
            self._is_open = False
            for session in self._recorded.sessions:
                session.recording = None
            _closed(self._file)


_GOING: weakref.WeakSet[Recording] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Ends the recordings that nobody has closed, or their last steps would be in no row."""
    for recording in list(_GOING):
        recording.leave()


def _warn(text: str) -> None:
    """Warn; if a filter turns the warning into an error, print it, so that training goes on."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    except RuntimeWarning:
        to_stderr(f"gradwire: {text}")


def record(
    handle: Handle | LocalSteps, folder: str | Path, to: To | Sequence[To] | None = None
) -> Recording:
    """Record every step into a run folder, from now on. Collective, between two steps.

    Each rank writes `rank-N.jsonl`: seconds and bytes of steps, spans of its lanes and of the
    training thread, each plan that comes into force, and the numbers of `handle.log(loss=…)`. The
    first line has the command, versions, and how far the rank's clock is ahead of rank 0's.
    Machines that share no disk write a folder each: copy the files together. Read it with
    `gradwire report FOLDER`. If the folder has a run already, it is continued, as after a restart.

    Every step is written at first, then every second, and so on: lines take about a tenth of a
    percent of the time, and the files of a run of a million steps have some megabytes each.

    Args:
        handle: the handle of `gradwire.attach`, or local steps: their rows are of the optimizer's
            steps, with a proportional part of the exchanges, so that they can be compared with a
            run that exchanges in every step.
        folder: the run folder, which is made if it is missing.
        to: a function, or several, that are called with this rank's numbers,
            "gradwire/step_seconds" and so on, and the step, at each row; None: no function.
            Examples are `gradwire.metrics.TensorBoard(writer)`,
            `gradwire.metrics.WeightsAndBiases(run)` and `gradwire.metrics.OpenMetrics(path)`. The
            thread that ends the exchange, not one of the job's, calls the function and waits for
            it: a library that keeps a run per thread, as MLflow, must be passed the run,
            ``partial(mlflow.log_metrics, run_id=…)``.

    Returns:
        The recording; ``recording.close()``, `detach`, or the end of a ``with`` block ends it, or
        the end of the process.

    Example:
        >>> with gradwire.record(handle, "run/"):
        ...     for inputs, targets in batches:
        ...         optimizer.zero_grad()
        ...         loss = loss_of(model(inputs), targets)
        ...         loss.backward()
        ...         optimizer.step()
        ...         handle.log(loss=loss)

    Raises:
        UsageError: the folder cannot be written, another recording is under way in it, of this
            process or another, or of this handle, or `to` is no function or list of functions.
            The other ranks raise a PlanError that says so.
    """
    recorded = _recorded(handle)
    session = recorded.sessions[0]
    group = session.circle.group  # of a sharded model, all replicate groups
    # These are not all of the job's ranks, if other parts of it are other models: files are
    # numbered by the global rank.
    is_sharded = isinstance(handle, Handle) and isinstance(handle._frontend, FsdpFrontend)
    group_of_names = None if is_sharded else group
    opened: list[RankFile] = []

    def begin() -> list[To]:
        told = _told(to)
        if not isinstance(folder, str | Path):
            raise UsageError(f"a run folder must be a path; got {folder!r:.80}. Pass 'run'.")
        opened.append(_opened(session, Path(folder), dist.get_rank(group_of_names)))
        return told

    try:
        told = same_everywhere(
            group, session.device, begin, lambda _: "a file", "all ranks must record",
            "Correct the call there; every rank needs a folder that it can write to.",
        )  # fmt: skip
        return Recording(recorded, opened[0], group_of_names, told)
    except BaseException:
        for file in opened:
            _closed(file)
        raise


def _recorded(handle: Handle | LocalSteps) -> Recorded:
    if isinstance(handle, LocalSteps):
        for fragment in handle.fragments:
            fragment.handle._check_usable()
        if handle.looks:
            raise UsageError(
                "a recording needs the number of local steps per exchange, which with every=None "
                "is known only after the first 12 steps. Pass every, or record after these."
            )
        return Alone(handle)
    if not isinstance(handle, Handle):
        raise UsageError(
            "record takes what gradwire.attach returned, or a LocalSteps; got a "
            f"{type(handle).__name__}. Attach the model, and pass the handle."
        )
    handle._check_between_steps()
    return Attached(handle)


def _told(to: To | Sequence[To] | None) -> list[To]:
    told: list[Any] = [] if to is None else list(to) if isinstance(to, list | tuple) else [to]
    if wrong := [each for each in told if not callable(each)]:
        raise UsageError(
            "to= must be one or more functions that take numbers and a step; got "
            f"to={wrong[0]!r:.80}. Pass one of gradwire.metrics, a list of such, or None."
        )
    if any(hasattr(getattr(each, "__self__", None), "define_metric") for each in told):
        raise UsageError(
            "rows of Weights & Biases must have ascending steps, or they are left out, the job's "
            "or the recording's; got to=wandb.log. Pass "
            "gradwire.metrics.WeightsAndBiases(wandb.run)."
        )
    return told


def _opened(session: Session, folder: Path, rank: int) -> RankFile:
    path = path_of(folder, rank).resolve()
    if session.recording is not None or path in _OPEN:
        raise UsageError(
            "a handle can have one recording at a time, and a folder too; a recording into "
            f"'{folder}' cannot begin while another is open. Close that one, or, if it is another "
            "handle's, pass another folder."
        )
    try:
        file = RankFile(folder, rank)
    except OSError as error:
        raise UsageError(
            f"this rank must be able to write into the run folder; '{folder}': {error.strerror}. "
            "Pass another folder."
        ) from error
    file.path = path
    _OPEN.add(path)
    return file


def _closed(file: RankFile) -> None:
    _OPEN.discard(file.path)
    try:
        file.close()
    except OSError as error:  # some file systems tell only now that they could not write
        _warn(
            f"a recording needs room on its disk; {file.path}: {error.strerror}, so its last "
            "lines may be lost. Training goes on. Free some space, or record into another folder."
        )


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"handle.log takes numbers, and tensors of one element; got {name}={value!r:.80}. "
            "Pass for example loss=loss.item()."
        ) from error


def _facts(session: Session) -> dict[str, Any]:
    """Facts that are needed to repeat the run."""
    try:
        folder = os.getcwd()
    except OSError:  # the folder was removed
        folder = ""
    return {
        "command": _command(), "folder": folder,
        "gradwire": version("gradwire"), "torch": torch.__version__,
        "python": platform.python_version(), "device": str(session.device),
        "backend": str(dist.get_backend(session.performers[0].group)),
        "kernels": kernels.instruction_set(), "cores": os.cpu_count(),
        "threads": torch.get_num_threads(), "seed": session.settings.seed,
        OVER: session.world,
    }  # fmt: skip


def _command() -> list[str]:
    """Returns the command line of this process. What `python -m` runs is named as a module, as its
    file alone would not find its package."""
    main = sys.modules["__main__"]
    spec, is_file = getattr(main, "__spec__", None), getattr(main, "__file__", "") == sys.argv[0]
    begin = sys.argv[:1] if spec is None or not is_file else ["-m", spec.name]
    return [sys.executable, *begin, *sys.argv[1:]]
