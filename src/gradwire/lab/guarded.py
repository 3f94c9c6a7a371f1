"""The lab's side of the guard: starts it, gives it orders, and makes sure it is gone."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.errors import LabError
from gradwire.lab.wire import Message, connection, receive, send
from gradwire.lab.wiring import Wiring

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_START_SECONDS = 60.0


def with_package_on_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with this very gradwire importable, installed or not."""
    rest = environment.get("PYTHONPATH")
    path = _PACKAGE_ROOT + (os.pathsep + rest if rest else "")
    return {**environment, "PYTHONPATH": path}


class GuardConnection:
    """A running guard. `close()` ends it and every process under it."""

    def __init__(self, mode: str, wiring: Wiring) -> None:
        """Start a guard in mode root, rootless or none, and wait until its network stands.

        Raises `LabError` with the guard's reason when it cannot be built.
        """
        self.channel, far_end = connection()
        with far_end:
            try:
                self._process = _launch(far_end)
            except BaseException:
                self.channel.close()
                raise
        try:
            settings = {"mode": mode, "wiring": asdict(wiring)}
            with _own_process_file() as files:
                send(self.channel, settings, files)
            self.channel.settimeout(_START_SECONDS)
            try:
                answer = self.receive()
            except TimeoutError as error:
                raise LabError(
                    f"a network must stand within {_START_SECONDS:.0f} seconds; this one has "
                    f"{len(wiring.machines)} machines and {len(wiring.cables)} cables, and does "
                    "not. Use fewer hosts, or wait until the machine is less busy."
                ) from error
            self.channel.settimeout(None)
            if answer["event"] != "ready":
                raise LabError(answer["reason"])
        except BaseException:
            self.close()
            raise

    def receive(self) -> Message:
        """Wait for the guard's next message."""
        message, _ = receive(self.channel)
        if not message:
            raise LabError(
                "the lab's guard process must run as long as the lab; it ended (killed, or out of "
                "memory?). See its last output, if any, on standard error, and start the lab "
                "again."
            )
        return message

    def order(self, name: str, files: tuple[int, ...] = (), **what: Any) -> None:
        """Order the guard to "start" a rank, whose standard output and error are the files;
        "signal" all that still run, and their process groups; "turn" a link up or down, which is
        answered by the event "failed" if it fails; or "clear", which kills whatever ranks started
        and is answered by the event "cleared"."""
        with contextlib.suppress(BrokenPipeError):  # receive() reports a dead guard
            send(self.channel, {"order": name, **what}, files)

    def look(self, ask: Mapping[str, Sequence[str]]) -> Message:
        """Return bytes `sent` by all machines' interfaces, and `answers` of `ip` on those named.

        Call it while no rank runs. Raises `LabError` without namespaces, and if `ip` refuses.
        """
        self.order("look", ask={name: list(lines) for name, lines in ask.items()})
        answer = self.receive()
        if answer["event"] != "seen":
            raise LabError(answer["reason"])
        return answer

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self.channel.fileno() < 0

    def close(self) -> None:
        """Hang up and wait until guard, ranks and network are gone. May be called twice."""
        self.channel.close()
        self._process.wait()


@contextlib.contextmanager
def _own_process_file() -> Iterator[tuple[int, ...]]:
    """Yield a file that notifies its holder of this process's end; none before Linux 5.3.

    The socket alone would not: a child forked from this process keeps a copy of it open.
    """
    try:
        descriptor = os.pidfd_open(os.getpid())
    except OSError:  # before Linux 5.3: the socket has to do
        yield ()
        return
    try:
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _launch(far_end: socket.socket) -> "subprocess.Popen[bytes]":
    # -P: a file of the user's named like a module of Python's must not be taken for it.
    command = [sys.executable, "-P", "-m", "gradwire.lab.guard", str(far_end.fileno())]
    try:
        return subprocess.Popen(
            command,
            env=with_package_on_path(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[far_end.fileno()],
            # Ctrl-C goes to the terminal's whole process group; the lab decides what it means.
            start_new_session=True,
        )
    except OSError as error:
        raise LabError(
            f"the lab must be able to start {sys.executable!r} once more; it cannot "
            f"({error.strerror}). Use a Python that this user may start, or end other processes."
        ) from error
