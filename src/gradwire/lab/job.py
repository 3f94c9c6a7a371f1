"""One command on all ranks of a cluster: its output, its end, and the end of the others."""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from gradwire.errors import LabError
from gradwire.lab.guarded import GuardConnection
from gradwire.lab.outages import Turn
from gradwire.lab.wire import Message
from gradwire.progress import to_stderr

LineHandler = Callable[[int, str, str], None]

# After one rank failed: time for the others to fail by themselves and say why; then, after
# SIGTERM, time to put things in order.
_GRACE_SECONDS = 2.0
_TERMINATION_SECONDS = 3.0
_LONGEST_WAIT_SECONDS = 3600.0  # at once: the kernel refuses more than 24 days
_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20


class LabTimeoutError(LabError, TimeoutError):
    """A command took longer than its timeout, and its processes were ended."""


def print_prefixed(rank: int, stream: str, line: str) -> None:
    """Print a rank's line on our stream of the same name, with the rank in front. If nobody reads
    standard error any more, the work goes on."""
    text = f"[{rank}] {line}"
    if stream == "stderr":
        to_stderr(text)
    else:
        print(text, flush=True)


class LinePipe:
    """A pipe that one rank writes to; hands each whole line to a handler as it comes."""

    def __init__(self, rank: int, stream: str, handler: LineHandler) -> None:
        self.rank = rank
        self.stream = stream
        self._handler = handler
        self._reader, self.writer = os.pipe()
        self._pending = b""

    def fileno(self) -> int:
        """Return the descriptor of the reading end, for a selector."""
        return self._reader

    def close_writer(self) -> None:
        """Drop our own writing end, so that the last rank's exit ends the pipe."""
        os.close(self.writer)

    def pump(self) -> bool:
        """Read once, which blocks when nothing is there; return False at the pipe's end."""
        chunk = os.read(self._reader, _READ_BYTES)
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if self._pending and (not chunk or len(self._pending) > _LONGEST_LINE_BYTES):
            lines, self._pending = [*lines, self._pending], b""
        for line in lines:
            text = line.removesuffix(b"\r").decode(errors="replace")
            self._handler(self.rank, self.stream, text)
        return bool(chunk)

    def close(self) -> None:
        """Close the reading end."""
        os.close(self._reader)


class Job:
    """Ranks that run the same command, while links go down and come back. Leaving the context ends
    all ranks and their children, and sets the links up again."""

    def __init__(
        self, guard: GuardConnection, on_line: LineHandler, turns: Sequence[Turn] = ()
    ) -> None:
        self._guard = guard
        self._on_line = on_line
        self._turns = list(turns)
        self._down = set[tuple[str, str]]()
        self._running: set[int] = set()
        self._first_failure = 0
        self._refusal: str | None = None
        self._cleared = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(guard.channel, selectors.EVENT_READ)

    def start(
        self, rank: int, host: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start one rank."""
        try:
            pipes = [LinePipe(rank, stream, self._on_line) for stream in ("stdout", "stderr")]
        except OSError as error:
            raise LabError(
                f"the output of each rank needs two open files; those of rank {rank} cannot be "
                f"opened: {error.strerror}. Start fewer ranks, or allow more files by ulimit -n."
            ) from error
        for pipe in pipes:
            self._selector.register(pipe, selectors.EVENT_READ)
        self._running.add(rank)
        try:
            outputs = (pipes[0].writer, pipes[1].writer)
            self._guard.order(
                "start", outputs, rank=rank, host=host, command=list(command),
                env=dict(environment), directory=os.getcwd(),
            )  # fmt: skip
        finally:
            for pipe in pipes:
                pipe.close_writer()

    def wait(self, timeout_seconds: float | None) -> int:
        """Wait for all ranks' ends; return the exit code of the first that failed, or 0."""
        began = time.monotonic()
        deadline = None if timeout_seconds is None else began + timeout_seconds
        while self._running and not self._failed():
            self._raise_if_over(deadline, timeout_seconds)
            while self._turns and time.monotonic() >= began + self._turns[0].seconds:
                self._turn(self._turns.pop(0))
            due = [began + turn.seconds for turn in self._turns[:1]]
            self._step(min([*due, deadline] if deadline is not None else due, default=None))
        self._wind_down(_GRACE_SECONDS)
        if self._refusal is not None:
            raise LabError(self._refusal)
        return self._first_failure

    def _turn(self, turn: Turn) -> None:
        """Order the guard to set a link up or down."""
        end = turn.machine, turn.interface
        (self._down.discard if turn.up else self._down.add)(end)
        self._guard.order("turn", machine=end[0], interface=end[1], up=turn.up)

    def _failed(self) -> bool:
        return self._first_failure != 0 or self._refusal is not None

    def _raise_if_over(self, deadline: float | None, timeout_seconds: float | None) -> None:
        if deadline is None or time.monotonic() < deadline:
            return
        raise LabTimeoutError(
            f"a command must end within its timeout; after {timeout_seconds} seconds rank(s) "
            f"{sorted(self._running)} still ran and were stopped. Allow more seconds, or find out "
            "what they wait for."
        )

    def _wind_down(self, grace_seconds: float) -> None:
        """Give the ranks time to end, then make them end; then read their last lines."""
        self._step_until(time.monotonic() + grace_seconds)
        if self._running:
            self._guard.order("signal", signal=signal.SIGTERM)
            self._step_until(time.monotonic() + _TERMINATION_SECONDS)
        for machine, interface in sorted(self._down):
            self._turn(Turn(0.0, machine, interface, up=True))
        self._guard.order("clear")
        while not self._cleared or len(self._selector.get_map()) > 1:
            self._step(None)

    def _step_until(self, deadline: float) -> None:
        while self._running and time.monotonic() < deadline:
            self._step(deadline)

    def _step(self, deadline: float | None) -> None:
        """Wait for one thing to happen, or the deadline, or an hour, and deal with it."""
        left = _LONGEST_WAIT_SECONDS if deadline is None else deadline - time.monotonic()
        seconds = min(max(0.0, left), _LONGEST_WAIT_SECONDS)
        for key, _ in self._selector.select(seconds):
            pipe = key.fileobj
            if not isinstance(pipe, LinePipe):
                self._take(self._guard.receive())
            elif not pipe.pump():
                self._selector.unregister(pipe)
                pipe.close()

    def _take(self, message: Message) -> None:
        event = message["event"]
        if event == "cleared":
            self._cleared = True
            return
        if event == "failed":
            self._refusal = message["reason"]
            return
        self._running.discard(message["rank"])
        if event == "refused":
            self._refusal = message["reason"]
        elif not self._failed():
            self._first_failure = message["code"]

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._cleared:
                # An error of ours (Ctrl-C, a timeout) is on its way: keep that one.
                with contextlib.suppress(LabError):
                    self._wind_down(grace_seconds=0.0)
        finally:
            if not self._cleared:  # interrupted again while ending the ranks: the hard way
                self._guard.close()
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, LinePipe):
                    key.fileobj.close()
            self._selector.close()
