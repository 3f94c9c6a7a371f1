"""The messages of lab and guard: one JSON object per packet, with open files beside it."""

import json
import os
import socket
from typing import Any

Message = dict[str, Any]

_ROOM_BYTES = 4 * 1024 * 1024
_LARGEST_PACKET_BYTES = 1 << 16
"""What every Linux passes; how much more, its administrator chooses (net.core.wmem_max)."""
_FILES_PER_MESSAGE = 2
_IN_FILE = b"in the last file"


def connection() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a fresh connection that keeps packets apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return ends


def send(channel: socket.socket, message: Message, files: tuple[int, ...] = ()) -> None:
    """Send one message and duplicates of `files`. A large one, as of many machines or a large
    environment, travels in a file of its own, in memory."""
    packet = json.dumps(message).encode()
    if len(packet) <= _LARGEST_PACKET_BYTES:
        socket.send_fds(channel, [packet], list(files))
        return
    with open(os.memfd_create("gradwire-lab"), "wb") as file:
        file.write(packet)
        file.flush()
        socket.send_fds(channel, [_IN_FILE], [*files, file.fileno()])


def receive(channel: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message and its files; an empty message when the other end is gone."""
    most = _FILES_PER_MESSAGE + 1
    try:
        packet, files, _, _ = socket.recv_fds(channel, _LARGEST_PACKET_BYTES, most)
    except ConnectionError:
        return {}, []
    if packet == _IN_FILE:
        with open(files.pop(), "rb") as file:
            file.seek(0)
            packet = file.read()
    return (json.loads(packet) if packet else {}), files
