"""`gradwire profile`: measure a job's first steps, and what strategies cost on its network."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.arguments import add_quiet, after_dashes, check_output, say
from gradwire.cli.endings import ending_on_sigterm
from gradwire.errors import UsageError
from gradwire.report.terminal import printable
from gradwire.strategy import Strategy

if TYPE_CHECKING:
    from gradwire.planner.profile import Profile, StrategyCost

_ENDING_SECONDS = 40.0  # a job has after Ctrl-C, before it is sent SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add = parser.add_argument
    file = "write the profile to FILE (default: %(default)s)"
    add("-o", "--output", type=Path, default=Path("profile.json"), metavar="FILE", help=file)
    tried = "strategies to measure (default: the usual ones for this job)"
    add("--strategies", nargs="+", metavar="STRATEGY", help=tried)
    add(
        "--vary",
        action="store_true",
        help="add variants of other densities, bits and ranks: costs computed, errors measured",
    )
    kept = "also record these steps into a run folder, as gradwire.record does"
    add("--record", type=Path, metavar="DIR", help=kept)
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)
    job = "the command that starts the job; each rank calls gradwire.attach"
    add("command_line", nargs=argparse.REMAINDER, metavar="-- CMD …", help=job)


def run(arguments: argparse.Namespace) -> int:
    """Runs the job until it is measured; returns its exit code, if that is not 0."""
    from gradwire.planner.paths import example
    from gradwire.planner.profile import Profile
    from gradwire.tuning.profile_only import asked

    command = after_dashes(arguments.command_line)
    if not command:
        raise UsageError(
            "a profile needs the command that starts the job; got none. Run gradwire profile -- "
            "torchrun … train.py, with all its arguments."
        )
    for text in arguments.strategies or ():
        Strategy.parse(example(text))
    output = arguments.output
    check_output("a profile", output)
    before = output.stat().st_mtime_ns if output.exists() else None
    wanted = asked(
        output, arguments.strategies, vary=arguments.vary, quiet=arguments.quiet,
        record=arguments.record,
    )  # fmt: skip
    environment = {**os.environ, **wanted}
    stdout = (sys.stderr or subprocess.DEVNULL) if arguments.json else None
    try:
        with ending_on_sigterm():
            code = _ended(subprocess.Popen(command, env=environment, stdout=stdout))
    except OSError as error:
        raise UsageError(
            f"the job must be a command that can be started; '{command[0]}': {error.strerror}. "
            "Correct the name, or put the program before it, such as gradwire profile -- torchrun "
            "… train.py."
        ) from error
    is_written = output.exists() and output.stat().st_mtime_ns != before
    if code:
        code = code if code > 0 else 128 - code
        return code if is_written else _failed(code, arguments.json)
    if not is_written:
        raise UsageError(
            f"the job ended and wrote no profile to {output}; it must call gradwire.attach() on "
            "its model, and take some 15 training steps. Look at its output."
        )
    profile = Profile.load(output)
    document = {"path": str(output), **json.loads(profile.to_json())}
    print(json.dumps(document) if arguments.json else printable(_text(profile, output)))
    return 0


def _failed(code: int, as_json: bool) -> int:
    """Says that the job failed before it was measured; returns its exit code."""
    said = (
        f"the job must train until it is measured; it ended with exit code {code}. Correct what "
        "its output shows; if RANK or MASTER_ADDR is missing, start it by torchrun, or as your "
        "cluster starts it."
    )
    if as_json:
        print(json.dumps({"error": "UsageError", "message": said}))
    say(said, "gradwire profile")
    return code


def _ended(job: subprocess.Popen[bytes]) -> int:
    """Waits for the job's end, and returns its exit code. After Ctrl-C, which a terminal sends to
    the job as well, it has time to end its ranks: torchrun takes up to 30 s, and if it were killed
    meanwhile, they would train on. A second Ctrl-C kills it. After SIGTERM, which nobody
    sent to the job, the job is sent it, and has as much time."""
    try:
        return job.wait()
    except SystemExit:
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_ENDING_SECONDS)
        raise
    except KeyboardInterrupt:
        say("interrupted; waiting for the job to end. Ctrl-C again kills it", "gradwire profile")
        try:
            job.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # it was not told: only this process was
            job.terminate()
            job.wait()
        raise
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()


def _text(profile: Profile, output: Path) -> str:
    from gradwire.report.table import Table

    largest = max(1, sum(p.elements for p in profile.parameters if not p.sparse))
    rows = [_row(text, cost, largest) for text, cost in profile.strategies.items()]
    headers = ("all at once, by", "encode, ms", "moves, ms", "decode, ms", "fit off by")
    ranks = "1 rank" if profile.world == 1 else f"{profile.world} ranks"
    return (
        f"{len(profile.ready)} parameters, {largest / 1e6:.1f} M elements, {ranks}: "
        f"backward {1e3 * profile.backward_seconds:.1f} ms, forward and optimizer "
        f"{1e3 * profile.around_seconds:.1f} ms\n\n{Table(headers, rows).as_text()}\n\n"
        f"saved {output}; next: gradwire plan --profile {output} -o plan.json"
    )


def _row(text: str, cost: StrategyCost, largest: int) -> tuple[str, ...]:
    parts = (cost.encode, cost.wire, cost.decode)
    return (text, *(f"{1e3 * part(largest):.2f}" for part in parts),
            f"{100 * max(part.error for part in parts):.0f} %")  # fmt: skip
