"""The messages of lab and guard: one JSON object per packet, with open files beside it."""

import json
import socket
from typing import Any

from gradwire.errors import LabError

Message = dict[str, Any]

_LARGEST_MESSAGE_BYTES = 4 * 1024 * 1024
_FILES_PER_MESSAGE = 2


def connection() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a fresh connection that keeps packets apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        # A large environment must fit into one packet.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_MESSAGE_BYTES)
    return ends


def send(channel: socket.socket, message: Message, files: tuple[int, ...] = ()) -> None:
    """Send one message and duplicates of `files`."""
    packet = json.dumps(message).encode()
    try:
        socket.send_fds(channel, [packet], list(files))
    except OSError as error:
        if isinstance(error, BrokenPipeError | ConnectionError):
            raise
        raise LabError(
            f"a command and its environment must fit into one packet; {len(packet)} bytes did not "
            f"({error.strerror}). Start with a smaller environment."
        ) from error


def receive(channel: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message and its files; an empty message when the other end is gone."""
    try:
        packet, files, _, _ = socket.recv_fds(channel, _LARGEST_MESSAGE_BYTES, _FILES_PER_MESSAGE)
    except ConnectionError:
        return {}, []
    return (json.loads(packet) if packet else {}), files
