"""How hosts send: the input of the packet engine and its twin."""

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
_LONGEST = 1000.0  # seconds: the most of any time
_LARGEST = 1 << 53  # the largest count: a float holds each exactly
_MOST = (1 << 16) - 1  # bytes of headers, and packets that one acknowledgement is for


@dataclass(frozen=True)
class Transport:
    """How hosts send, and how large queues are. Raises NetworkError for values out of range.

    packet_bytes: those of a message in each packet but its last; header_bytes: of each besides.
    window: the most packets of a connection under way. ack_bytes: of an acknowledgement, which
    goes before all else and takes its part of links; ack_packets: how many packets it is for,
    unless one is marked, or the last that the window allows. latency_ns: of each link. timeout_us:
    of timers. queue_bytes: the longest queue of a link that is not a host's own, with headers;
    mark_bytes: a packet that finds it longer than this is marked. spraying: how packets that are
    spread over all paths choose: any (random), the next (rotating), or one whose acknowledgement
    came back unmarked (recycled, REPS); or switches choose among their ways up: the shortest queue
    (adaptive), or one after the other, in another order each round (round_robin). band_bytes:
    queues of equally many of these count as equally short; by single bytes, messages would keep to
    the uplinks that they have just made free. entropies: the number of hashes that are recycled.
    slow_down: windows shrink by marks. repath: a pinned connection whose timer ran out takes
    another path. exclude_us: how long a host's connections to a leaf avoid a path on which a timer
    ran out, unless switches choose; 0: each finds out by itself. jitter_ns: the most by which each
    begins later. trim: a packet that finds a queue full loses its payload only; the header goes
    before all else, and the sender is notified in a round trip, not by a timer (Handley et al.
    2017), unless no queue is long enough for it. selective: pinned connections, too, are
    acknowledged packet by packet, and send again only what was lost, as sprayed ones do anyway,
    and all do with trim; else they go back to it.
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

    @property
    def is_selective(self) -> bool:
        """Whether pinned connections send again only what was lost. With trim they must: if each
        header had a whole window sent again, windows would fill the queues for ever."""
        return self.selective or self.trim


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
    """The columns that the engine reads, ordered by job, then by step, then by start."""

    source: Ints
    target: Ints
    bytes: Ints
    choice: Ints
    start: Ints
    step: Ints
    job: Ints
    paths: tuple[Paths, ...]
