"""Messages of lab and guard."""

import os
import socket

import pytest

from gradwire.lab.wire import connection, receive, send


@pytest.mark.parametrize("size", [0, 60_000, 3_000_000])
def test_a_message_of_any_size_comes_with_its_files(size: int) -> None:
    """The kernel passes packets of some 400 KB at most, unless it is told otherwise."""
    ends = connection()
    with ends[0], ends[1]:
        ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
        before = len(os.listdir("/proc/self/fd"))
        reader, writer = os.pipe()
        send(ends[0], {"text": "x" * size}, (writer,))
        os.close(writer)
        message, (file,) = receive(ends[1])
        assert message == {"text": "x" * size}
        os.write(file, b"!")
        os.close(file)
        assert os.read(reader, 2) == b"!"
        os.close(reader)
        assert len(os.listdir("/proc/self/fd")) == before, "nothing stays open"
        ends[0].close()
        assert receive(ends[1]) == ({}, [])
