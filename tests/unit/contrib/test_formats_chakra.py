"""Chakra's traces: closed forms, a file that Chakra's own schema wrote, and invalid files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import leaf_spine
from gradwire_formats import chakra
from gradwire_formats.chakra import COLLECTIVE, COMPUTE, RECEIVE, SEND

FOUR = leaf_spine(2, 2, 2, host_gbps=8)  # 1 byte each nanosecond
WRITTEN = bytes.fromhex(
    "070a05302e302e3441080a1203667764180438904e520e0a0969735f6370755f6f70d80100520c0a017819000000000000044052150a0c696e766f6c7665645f64696de201040a02010120080b120362776418042a010a38a09c01520e0a0969735f6370755f6f70d801003c080c1202617218072a020b0a520d0a09636f6d6d5f74797065480052100a09636f6d6d5f73697a65488092f401520d0a0770675f6e616d65ea01013042080d180522010c520f0a09636f6d6d5f73697a6548c0843d520c0a08636f6d6d5f7372633800520c0a08636f6d6d5f6473743801520c0a08636f6d6d5f74616738071a080e18042a010c38e807520e0a0969735f6370755f6f70d80100"
)
"""Nodes 10 to 14 of rank 0, written with the published schema."""


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def held(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def node(id: int, type: int, *after: int, micros: int = 0, **says: int | str) -> bytes:
    attributes = (
        held(1, name.encode())
        + (held(29, value.encode()) if isinstance(value, str) else number(9, value))
        for name, value in says.items()
    )
    packed = held(5, b"".join(map(varint, after))) if after else b""
    return (
        number(1, id) + number(3, type) + packed + number(7, micros)
        + b"".join(held(10, attribute) for attribute in attributes)
    )  # fmt: skip


def trace(*nodes: bytes) -> bytes:
    return b"".join(varint(len(m)) + m for m in (held(1, b"0.0.4"), *nodes))


def seconds(folder: Path, *ranks: bytes) -> float:
    for rank, data in enumerate(ranks):
        (folder / f"job.{rank}.et").write_bytes(data)
    return chakra.chakra(str(folder)).seconds(FOUR, tolerance=0.0)


def compute(id: int, *after: int, micros: int = 1000, cpu: int = 0) -> bytes:
    return node(id, COMPUTE, *after, micros=micros, is_cpu_op=cpu)


def collective(
    id: int, *after: int, kind: int = 0, bytes: int = 4_000_000, group: str = ""
) -> bytes:
    return node(id, COLLECTIVE, *after, comm_type=kind, comm_size=bytes, pg_name=group)


def test_what_the_schema_writes_is_read() -> None:
    nodes = list(chakra._nodes(WRITTEN))
    assert [n.id for n in nodes] == [10, 11, 12, 13, 14]
    assert [n.type for n in nodes] == [COMPUTE, COMPUTE, COLLECTIVE, SEND, COMPUTE]
    assert [n.seconds for n in nodes] == [0.01, 0.02, 0.0, 0.0, 0.001]
    assert [n.after for n in nodes] == [[], [10], [11, 10], [12], [12]]
    assert nodes[2].says == {"comm_type": 0, "comm_size": 4_000_000, "pg_name": "0"}
    assert nodes[3].number("comm_tag") == 7


def test_computing_follows_itself_on_a_stream(tmp_path: Path) -> None:
    """Three nodes on the device run in turn without dependencies, beside one on the processor."""
    own = trace(*(compute(i) for i in range(3)), compute(9, micros=2500, cpu=1))
    assert seconds(tmp_path, own) == pytest.approx(0.003)


def test_a_step_is_shown_by_what_devices_compute_and_send(tmp_path: Path) -> None:
    """A trace shows 1 ms of a device, 6 ms of a collective and 1 ms more. The processor's work is
    left out, except on the rank that has nothing else."""
    own = trace(compute(9, micros=2500, cpu=1), compute(1), collective(2, 1), compute(3, 2))
    hosts = trace(compute(1, cpu=1), collective(2, 1), compute(3, 2, cpu=1))
    for i, data in enumerate([own, own, own, hosts]):
        (tmp_path / f"step.{i}.et").write_bytes(data)
    found = chakra.chakra(str(tmp_path)).trace(FOUR, tolerance=0.0)
    for rank in range(4):
        spans = [(s.kind, s.start_seconds, s.end_seconds) for s in found.spans if s.rank == rank]
        wanted = [("compute", 0.0, 0.001), ("wire", 0.001, 0.007), ("compute", 0.007, 0.008)]
        assert [kind for kind, *_ in spans] == [kind for kind, *_ in wanted]
        assert [at for _, *at in spans] == [pytest.approx(at) for _, *at in wanted]


def test_nodes_may_stand_before_what_they_wait_for(tmp_path: Path) -> None:
    assert seconds(tmp_path, trace(compute(7, 3), compute(3))) == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(0, 0.006), (2, 0.012), (3, 0.012), (6, 0.003), (7, 0.003), (8, 0.003), (5, 0.012)],
)
def test_collectives_take_what_their_bytes_take(
    tmp_path: Path, kind: int, expected: float
) -> None:
    """A collective to which each of four ranks brings 4 MB takes the time that its bytes need."""
    own = trace(compute(1), collective(2, 1, kind=kind), compute(3, 2))
    assert seconds(tmp_path, *[own] * 4) == pytest.approx(expected + 0.002)


def test_collectives_of_two_groups_at_once(tmp_path: Path) -> None:
    """Two groups of two ranks, 4 MB each, take 4 ms; the second group's begins 5 ms late."""
    one, other = collective(1, group="a"), collective(1, group="b")
    late = trace(compute(0, micros=5000), collective(1, 0, group="b"))
    assert seconds(tmp_path, trace(one), trace(one), trace(other), late) == pytest.approx(0.009)


def test_a_barrier_is_for_all(tmp_path: Path) -> None:
    def rank(micros: int) -> bytes:
        return trace(compute(1, micros=micros), collective(2, 1, kind=9, bytes=0), compute(3, 2))

    assert seconds(tmp_path, rank(1000), rank(7000)) == pytest.approx(0.008)


def test_messages_arrive_in_order(tmp_path: Path) -> None:
    """Two messages of one tag, 1 and 2 MB, at once; after the first the receiver computes 5 ms."""
    sends = [node(i, SEND, comm_size=i * 10**6, comm_dst=2, comm_tag=4) for i in (1, 2)]
    gets = [node(i, RECEIVE, comm_size=i * 10**6, comm_src=0, comm_tag=4) for i in (1, 2)]
    receiver = trace(*gets, compute(3, 1, micros=5000))
    assert seconds(tmp_path, trace(*sends), trace(), receiver) == pytest.approx(0.007)


def test_a_message_of_no_bytes_is_a_signal(tmp_path: Path) -> None:
    sender = trace(compute(1, micros=3000), node(2, SEND, 1, comm_dst=1))
    receiver = trace(node(1, RECEIVE, comm_src=0), compute(2, 1))
    assert seconds(tmp_path, sender, receiver) == pytest.approx(0.004)


def test_who_is_not_received_is_told(tmp_path: Path) -> None:
    send = trace(node(1, SEND, comm_size=5, comm_dst=1))
    with pytest.raises(NetworkError, match="rank 0 sends 1 messages to 1 with tag 0"):
        seconds(tmp_path, send, trace())


def test_collectives_that_differ_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        NetworkError, match="collective 0 of group '' has 2 of 2 ranks and 2 kinds"
    ):
        seconds(tmp_path, trace(collective(1)), trace(collective(1, kind=2)))
    with pytest.raises(NetworkError, match="collective 1 of group '' has 1 of 2 ranks"):
        seconds(tmp_path, trace(collective(1), collective(2)), trace(collective(1)))
    with pytest.raises(NetworkError, match="comm_type is one of"):
        seconds(tmp_path, *[trace(collective(1, kind=77))] * 2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (trace(compute(1))[:-3], "job.0.et: .*beyond the end"),
        (trace(compute(1), compute(1)), "two have 1"),
        (trace(compute(1, 5)), "1 waits for 5"),
        (trace(compute(1, 2), compute(2, 1)), "circles"),
        (b"\xff" * 30, "10 bytes at most"),
        (trace(b"\x0b"), "byte 1 says 3"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        seconds(tmp_path, data)


def test_ranks_that_are_missing_are_told(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="has none"):
        chakra.workload(tmp_path)
    (tmp_path / "job.0.et").write_bytes(trace())
    (tmp_path / "job.2.et").write_bytes(trace())
    with pytest.raises(NetworkError, match=r"job\.0\.et, job\.2\.et"):
        chakra.workload(tmp_path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for whole in (data, trace(data)):
        with suppress(NetworkError):
            list(chakra._nodes(whole))
