"""`gradwire profile CMD …`: measures the job's first steps, then ends the job.

The job finds the request in an environment variable, so that no line of it changes.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from gradwire.errors import PlanError, UsageError
from gradwire.planner.paths import is_pattern, whole
from gradwire.planner.profile import Profile
from gradwire.planner.variants import worked_out
from gradwire.progress import Lines, Progress, each, silent, to_stderr
from gradwire.strategy import Strategy
from gradwire.training.attach import Handle
from gradwire.training.recording import record
from gradwire.training.session import Session
from gradwire.tuning.agree import from_first
from gradwire.tuning.exactness import Exactness
from gradwire.tuning.paths import with_measured_paths
from gradwire.tuning.probe import Probe
from gradwire.tuning.profiling import measure, samples_of, usual_strategies
from gradwire.tuning.recorder import Recorder
from gradwire.tuning.singles import measure_local, measure_moves
from gradwire.tuning.steps import Life, OnSteps, for_steps

VARIABLE = "GRADWIRE_PROFILE"
WARM_UP, WATCHED = 3, 10
SAMPLED = 1 << 18
"""The number of elements of a step's gradients on which errors are measured."""
_ATTACHED = weakref.WeakSet[nn.Module]()  # by this process, to be profiled


def asked(
    path: str | Path, strategies: Sequence[str] | None = None, *, vary: bool = False,
    quiet: bool = False, record: str | Path | None = None,
) -> Mapping[str, str]:  # fmt: skip
    """Returns the environment variables that make a job write its profile, on each machine.

    strategies: those to measure; by default the usual ones for the job's machines. vary: whether
    to add their variants. quiet: whether rank 0 prints no progress. record: the folder in which to
    record these steps.
    """
    wanted = {
        "path": str(Path(path).resolve()), "strategies": list(strategies or ()), "vary": vary,
        "quiet": quiet, "record": None if record is None else str(Path(record).resolve()),
    }  # fmt: skip
    return {VARIABLE: json.dumps(wanted)}


def is_asked() -> bool:
    """Whether this job is only to be profiled."""
    return VARIABLE in os.environ


def profile_and_exit(module: nn.Module, handle: Handle) -> None:
    """Profiles some steps, writes the file, and then raises SystemExit(0) on every rank.

    Raises:
        UsageError: the variable is not what `asked` makes.
    """
    try:
        wanted = json.loads(os.environ[VARIABLE])
        path, strategies = Path(wanted["path"]), list(map(str, wanted["strategies"]))
        vary, quiet, folder = bool(wanted["vary"]), bool(wanted["quiet"]), wanted["record"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{VARIABLE} must have the value that `gradwire profile` sets; got {error!r}. Unset "
            "it to train."
        ) from error
    session = handle._session
    _ATTACHED.add(module)
    if len(_ATTACHED) > 1 and session.circle.rank == 0:
        _say(
            f"a profile is of one model; the job attaches {len(_ATTACHED)}, and the first to have "
            f"made {WARM_UP + WATCHED} steps is profiled. Attach one alone to choose it"
        )
    if folder is not None:
        record(handle, folder)

    def wanted_here() -> str:
        return json.dumps(list(strategies or usual_strategies(session, for_any=True)))

    def life(steps: OnSteps) -> Life:
        say: Progress = silent if quiet or session.circle.rank else Lines(_say)
        say("warming up")
        yield from for_steps(WARM_UP)
        recorder = Recorder(module, session, SAMPLED)
        for _ in each(say, "watching steps", range(WATCHED)):
            yield
        recorder.close()
        texts = json.loads(from_first(session.circle, wanted_here))
        profile = measure(session, recorder, list(map(whole, texts)), say)
        profile = _with_parts(profile, session, say)
        if patterns := [text for text in texts if is_pattern(text)]:
            profile = with_measured_paths(profile, session, patterns, lambda text: True, say)
        problem = None
        try:
            costs = worked_out(profile) if vary else {}
            profile = replace(profile, strategies={**profile.strategies, **costs})
        except PlanError as error:
            problem = error  # after what was measured is in the file
        profile = _with_errors(profile, session, samples_of(session, recorder), say)
        is_first = session.circle.rank == 0
        if is_first or os.environ.get("LOCAL_RANK") == "0":  # the first rank of each machine
            profile.save(path)
        steps.close()
        handle.detach()
        if problem is not None:
            raise PlanError(f"{problem} '{path}' has all that was measured, without variants.")
        sys.exit(0)

    OnSteps(session, life)


def _with_parts(profile: Profile, session: Session, say: Progress) -> Profile:
    """Adds the costs of single moves and compressors, from which other clusters are planned."""
    largest = sum(p.elements for p in profile.parameters if not p.sparse)
    lane, machines = session.performers[0], session.machines
    moves = measure_moves(lane, machines, 4 * largest, session.circle, progress=say)
    compressors = {}
    for text in each(say, "compressing", list(profile.strategies)):
        left = text.partition(" |")[0]
        name = f"{left} @ {session.device.type}"
        if name not in compressors and Strategy.parse(text).compressor.claims(1 << 10).fixed:
            compressors[name] = measure_local(text, session.device, largest, session.circle)
    return replace(profile, moves=moves, compressors=compressors)


def _with_errors(
    profile: Profile, session: Session, samples: Mapping[str, Sequence[Tensor]],
    say: Progress,
) -> Profile:  # fmt: skip
    """Adds the errors of strategies on this job's gradients."""
    exactness = Exactness(Probe(session.performers[0], session.machines), samples)
    strategies = {}
    for text in each(say, "what is lost", list(profile.strategies)):
        cost = profile.strategies[text]
        errors = exactness.errors(text)
        strategies[text] = replace(cost, error=errors.pop("", None), errors=errors)
    return replace(profile, strategies=strategies)


def _say(line: str) -> None:
    to_stderr(f"gradwire profile: {line}")
