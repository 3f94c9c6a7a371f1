"""A switch that delays and loses frames, where the kernel has no netem for that.

    host0 ── tbf ──► port0 ══ the native forwarder, a thread ══► port2 ── tbf ──► host2

It opens a packet socket on every port of the switch, and so takes the place of the bridge.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from gradwire.errors import LabError
from gradwire.extension import extension
from gradwire.lab.distance import Distance

_EVERY_PROTOCOL = 3
_OF_PACKETS, _WITH_HEADER, _IGNORE_OWN = 263, 15, 23  # SOL_PACKET, PACKET_…, from linux/*.h
_FORCE_SEND_ROOM, _FORCE_RECEIVE_ROOM = 32, 33  # SO_…BUFFORCE
_ROOM_BYTES = 64 << 20
_NICE = -20


class Forwarded(NamedTuple):
    """What a switch has done: frames that came to be forwarded, those of them that it lost by
    chance, those that a full or dead port refused, and the processor's time it took."""

    frames: int
    lost: int
    refused: int
    processor_seconds: float

    def __str__(self) -> str:
        """Return it as a phrase."""
        share = 100 * self.lost / max(1, self.frames)
        return (
            f"{self.frames:,} frames, of which {self.lost:,} ({share:.2g} %) were lost by chance "
            f"and {self.refused:,} in full queues; {self.processor_seconds:.2g} s of a processor"
        )


class Forwarding:
    """A running forwarder; it ends with its process, or by `close`."""

    def __init__(self, interfaces: Sequence[str], distance: Distance) -> None:
        """Begin to forward between the interfaces, which are in this thread's network namespace.
        Raises LabError without the native core, and if the kernel refuses packet sockets."""
        native = extension()
        if native is None or not hasattr(native, "Forwarder"):
            raise LabError(
                "delays and losses need gradwire's native core, which was not built. Install "
                "gradwire with a C++ compiler, or leave them out."
            )
        try:
            self._sockets = [_port(name) for name in interfaces]
        except OSError as error:
            raise LabError(
                f"delays and losses need packet sockets; the kernel refuses them: {error}. Leave "
                "them out, or allow the capability NET_RAW."
            ) from error
        files = [port.fileno() for port in self._sockets]
        self._stop, self._other_end = os.pipe()
        delay, jitter = (round(1e9 * s) for s in (distance.seconds, distance.jitter_seconds))
        self._forwarder = native.Forwarder(files, delay, jitter, distance.loss, 1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def counts(self) -> Forwarded:
        """Return what it has done so far."""
        return Forwarded(*self._forwarder.counts())

    def close(self) -> None:
        """End it."""
        os.close(self._other_end)
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):  # without the right to it, delays are less exact under load
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            self._forwarder.run(self._stop)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # hosts could not reach each other any more, and would wait


def _port(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_OF_PACKETS, _WITH_HEADER, 1)
    port.setsockopt(_OF_PACKETS, _IGNORE_OWN, 1)
    for option in (_FORCE_SEND_ROOM, _FORCE_RECEIVE_ROOM):
        with suppress(OSError):
            port.setsockopt(socket.SOL_SOCKET, option, _ROOM_BYTES)
    port.bind((interface, _EVERY_PROTOCOL))
    return port
