"""How hosts send: what the packet engine and its twin are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from gradwire.document import Document
from gradwire.errors import NetworkError
from gradwire.network.checked import Ints
from gradwire.schema import Flag, Number, Table, Text, Whole

Spraying = Literal["random", "rotating", "recycled", "adaptive", "round_robin"]
SPRAYING: tuple[Spraying, ...] = get_args(Spraying)
CHOICES: tuple[str, ...] = ("pinned", *SPRAYING)
_LONGEST = 1000.0  # seconds: what may be waited for
_LARGEST = 1 << 53  # of counts: a float holds each
_MOST = (1 << 16) - 1  # bytes of headers, and packets that one acknowledgement is for


@dataclass(frozen=True)
class Transport:
    """How hosts send, and how large queues are. NetworkError for what cannot be.

    packet_bytes: of a message, in each packet but its last; header_bytes: of each packet besides.
    window: packets of a connection under way. ack_bytes: of an acknowledgement, which goes before
    all else and takes its part of links; ack_packets: one is for so many, unless a packet is
    marked, or the last that the window allows. latency_ns: of each link. timeout_us: of timers.
    queue_bytes, mark_bytes: of each link that is not a host's own, with headers. spraying: how
    packets that are spread over all paths choose: any (random), the next (rotating), or one of
    which an acknowledgement came back unmarked (recycled, REPS); or switches choose of their ways
    up: the shortest queue (adaptive), or one after the other, in another order each round
    (round_robin). band_bytes: queues are as short if they have as many of these; by single bytes
    messages would keep to the uplinks that they have just made free. entropies: of those that may
    be recycled.
    slow_down: windows shrink by marks. repath: a pinned connection whose timer ran out takes
    another path. exclude_us: for so long a host's connections to a leaf avoid a path on which a
    timer ran out, unless switches choose; 0: each finds out by itself. jitter_ns: each begins so
    much later at most. trim: what finds a queue full loses its payload only; the header goes
    before all else, and the sender hears of it in a round trip, not by a timer (Handley et al.
    2017), unless no queue is long enough for it. selective: pinned connections, too, are
    acknowledged packet by packet, and send again only what was lost, as sprayed ones do anyway;
    else they go back to it.
    Counts are at most 2^53, times 1,000 seconds.
    """

    packet_bytes: int = 4096
    header_bytes: int = 0
    window: int = 64
    ack_bytes: int = 0
    ack_packets: int = 1
    latency_ns: float = 500.0
    timeout_us: float = 100.0
    queue_bytes: int = 64 << 20
    mark_bytes: int = 800_000
    spraying: Spraying = "random"
    band_bytes: int = 16_384
    entropies: int = 256
    slow_down: bool = False
    repath: bool = True
    exclude_us: float = 0.0
    jitter_ns: float = 0.0
    trim: bool = False
    selective: bool = False

    def __post_init__(self) -> None:
        _DOCUMENT.take(vars(self))


_COUNTS = ("packet_bytes", "window", "queue_bytes", "mark_bytes", "band_bytes", "entropies")
_DOCUMENT = Document(
    "a transport",
    Table({
        **dict.fromkeys(_COUNTS, Whole(1, _LARGEST)),
        "header_bytes": Whole(0, _MOST), "ack_bytes": Whole(0, _MOST),
        "ack_packets": Whole(1, _MOST),
        "latency_ns": Number(1e-3, _LONGEST * 1e9), "timeout_us": Number(1e-6, _LONGEST * 1e6),
        "exclude_us": Number(0, _LONGEST * 1e6), "jitter_ns": Number(0, _LONGEST * 1e9),
        "spraying": Text(SPRAYING), "slow_down": Flag(), "repath": Flag(),
        "trim": Flag(), "selective": Flag(),
    }),
    NetworkError, "Correct it",
)  # fmt: skip


class Paths(NamedTuple):
    """The paths of all connections from `since` on, in picoseconds: columns, and a table of
    `Usable`."""

    since: int
    path: Ints
    counts: Ints
    pair: Ints
    table: Ints | None


class Connections(NamedTuple):
    """Columns, by job, then by step and then by start: what the engine reads."""

    source: Ints
    target: Ints
    bytes: Ints
    choice: Ints
    start: Ints
    step: Ints
    job: Ints
    paths: tuple[Paths, ...]
