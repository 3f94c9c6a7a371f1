"""One host's part of `transfer`: opens its connections, waits for the start, sends and receives.

Prints "ready" and, at the end, when each transfer's last byte arrived, by the monotonic clock, and
how many segments the host sent again.
"""

import json
import os
import selectors
import socket
import sys
from pathlib import Path
from time import monotonic, sleep

from gradwire.lab.counters import segments_resent

_CHUNK = memoryview(bytes(1 << 20))
_PATIENCE_SECONDS = 30.0
_WAKE_BYTES = 1 << 17  # all hosts share few cores: fewer, larger reads


def main() -> None:
    """Performs this rank's tasks in the folder."""
    folder = Path(sys.argv[1])
    tasks = json.loads((folder / "tasks").read_text())[int(os.environ["RANK"])]
    listeners = [(_listening(address, port), size) for address, port, size in tasks["receive"]]
    sending = [(_connected(*own_and_peer), size) for *own_and_peer, size in tasks["send"]]
    receiving = [(listener.accept()[0], size) for listener, size in listeners]
    before = segments_resent()
    print("ready")
    _await_start(folder / "start")
    for arrival in _move(sending, receiving):
        print("arrived", arrival)
    print("resent", segments_resent() - before)


def _listening(address: str, port: int) -> socket.socket:
    listener = socket.create_server((address, port))
    listener.settimeout(_PATIENCE_SECONDS)
    return listener


def _connected(own: str, own_port: int, peer: str, port: int) -> socket.socket:
    """Returns a connected socket. Retries, because the other host may not listen yet."""
    deadline = monotonic() + _PATIENCE_SECONDS
    while True:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((own, own_port))
        try:
            one.connect((peer, port))
            return one
        except ConnectionRefusedError:
            one.close()
            if monotonic() > deadline:
                raise
            sleep(0.005)


def _await_start(file: Path) -> None:
    while not file.exists():
        sleep(0.002)
    sleep(max(0.0, float(file.read_text()) - monotonic()))


def _move(
    sending: list[tuple[socket.socket, int]], receiving: list[tuple[socket.socket, int]]
) -> list[float]:
    """Sends and receives all; returns when each received transfer had arrived."""
    arrivals = list[float]()
    left = dict(sending + receiving)
    room = bytearray(len(_CHUNK))
    with selectors.DefaultSelector() as selector:
        for one, _ in sending:
            one.setblocking(False)
            selector.register(one, selectors.EVENT_WRITE)
        for one, _ in receiving:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
            selector.register(one, selectors.EVENT_READ)
        while selector.get_map():
            for key, event in selector.select():
                this = key.fileobj
                assert isinstance(this, socket.socket)
                is_sent = bool(event & selectors.EVENT_WRITE)
                if is_sent:
                    left[this] -= this.send(_CHUNK[: left[this]])
                elif count := this.recv_into(room):
                    left[this] -= count
                else:
                    raise ConnectionError(f"a sender left {left[this]} bytes out")
                if left[this] == 0:
                    selector.unregister(this)
                    this.shutdown(socket.SHUT_WR) if is_sent else arrivals.append(monotonic())
    return arrivals


if __name__ == "__main__":
    main()
