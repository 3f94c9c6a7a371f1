"""A trace as ui.perfetto.dev and chrome://tracing read it: the Trace Event Format, JSON, gzip.

    rank 0   trains   ├ compute ┤├ backward ───┤├ wait ────┤
             lane 0              ├encode┤├ wire ──┤├decode┤
             lane 1                  ├encode┤├ wire ─┤├decode┤
    rank 1   …

Torch's profiler writes the same format: its events of the same run can stand beside ours
(`read_torch`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from gradwire.document import save_file
from gradwire.errors import UsageError
from gradwire.trace import TRAINING_THREAD, Span, Trace, range_name

Event = dict[str, Any]
_DAMAGE = (
    OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, OverflowError, RecursionError,
)  # fmt: skip


def events(
    trace: Trace, names: Mapping[int, str] | None = None,
    pids: Mapping[int, int | str] | None = None, zero_seconds: float = 0.0,
) -> list[Event]:  # fmt: skip
    """Returns the trace's spans as complete events: a process per rank, a thread per lane.

    Args:
        trace: of one or several steps.
        names: the ranks' names; by default "rank 0" and so on.
        pids: the numbers of the ranks' processes; by default the ranks' own.
        zero_seconds: the time on the trace's clock that is 0 in the events.
    """
    pids = pids or {}
    lanes = sorted({(span.rank, span.lane) for span in trace.spans})
    found = [
        event
        for rank in sorted({rank for rank, _ in lanes})
        for event in _named_process(rank, (names or {}).get(rank, f"rank {rank}"), pids)
    ]
    found += [_named_thread(rank, lane, pids) for rank, lane in lanes]
    found += [_event(span, pids, zero_seconds) for span in trace.spans]
    return found


def side_by_side(traces: Mapping[str, Trace], name: Callable[[int], str]) -> list[Event]:
    """Returns the events of several traces, which begin at the same time: the processes of the
    first, then those of the next. A process has the trace's name and that of its rank; name: of a
    rank, "" if each trace has only one."""
    names, spans = dict[int, str](), list[Span]()
    for title, trace in traces.items():
        zero = min((span.start_seconds for span in trace.spans), default=0.0)
        ranks = sorted({span.rank for span in trace.spans})
        numbers = dict(zip(ranks, count(len(names))))
        names |= {numbers[rank]: f"{title}: {name(rank)}".removesuffix(": ") for rank in ranks}
        spans += (
            span._replace(
                rank=numbers[span.rank], start_seconds=span.start_seconds - zero,
                end_seconds=span.end_seconds - zero,
            )
            for span in trace.spans
        )  # fmt: skip
    return events(Trace(len(names), spans), names)


def save(events: Sequence[Event], path: Path) -> None:
    """Writes events as one document, compressed if its name ends in .gz. Raises UsageError if it
    cannot be written."""
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))
    try:
        packs = path.suffix == ".gz"
        save_file(path, gzip.compress(text.encode(), mtime=0) if packs else text)
    except OSError as error:
        raise UsageError(
            f"the trace needs a file that can be written; '{path}': {error.strerror}. Pass "
            "another."
        ) from error


def read_torch(path: Path) -> tuple[list[Event], float, object]:
    """Reads what torch's profiler exported by `export_chrome_trace`. Returns its events, the time
    that is 0 in them, in seconds since 1970, and the rank that it was of; None: it does not say.

    Raises:
        UsageError: the file is no such trace.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(text)
        found, zero = list(document["traceEvents"]), int(document["baseTimeNanoseconds"]) / 1e9
        if not all(map(_is_event, found)):
            raise ValueError("an event is no table, or its ts or pid is none")
        group = document.get("distributedInfo")
    except _DAMAGE as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise UsageError(
            "a trace of torch must be what its profiler's export_chrome_trace() wrote, with "
            f"baseTimeNanoseconds; '{path}': {why}. Export it again."
        ) from error
    return found, zero, group.get("rank") if isinstance(group, dict) else None


def _is_event(value: object) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("ts", 0), int | float)
        and isinstance(value.get("pid", 0), int | str)
    )  # fmt: skip


def moved(events: Iterable[Event], by_seconds: float) -> list[Event]:
    """Returns the events, moved to so many seconds later."""
    return [e | {"ts": e["ts"] + 1e6 * by_seconds} if "ts" in e else e for e in events]


def without_names_of(pid: int | str, events: Iterable[Event]) -> list[Event]:
    """Returns the events without the name and the place of a process, of which a reader takes the
    first."""
    own = ("process_name", "process_sort_index")
    return [e for e in events if not (e.get("pid") == pid and e.get("name") in own)]


def processes(events: Iterable[Event]) -> set[int]:
    """Returns the numbers of the processes whose work is in events of torch's profiler."""
    return {int(e["pid"]) for e in events if e.get("ph") == "X" and isinstance(e.get("pid"), int)}


def renumbered(
    events: Sequence[Event], new: dict[int | str, int | str], taken: set[int | str]
) -> list[Event]:
    """Returns a rank's events, with other numbers for processes whose own are taken: those of
    several hosts may be the same, and GPUs are numbered from 0 on each. new: the new numbers by
    the old ones; updated."""
    for pid in dict.fromkeys(e["pid"] for e in events if "pid" in e):
        if pid not in new:
            new[pid] = take(pid, taken)
    return [e | {"pid": new[e["pid"]]} if "pid" in e else e for e in events]


def with_ids_from(events: Iterable[Event], first: int) -> tuple[list[Event], int]:
    """Returns a file's events with the ids of their arrows, which each file numbers anew, from
    `first` on; and one that is above all of them."""
    found = [e | {"id": e["id"] + first} if type(e.get("id")) is int else e for e in events]
    return found, max((e["id"] + 1 for e in found if type(e.get("id")) is int), default=first)


def take(pid: int | str, taken: set[int | str]) -> int | str:
    """Returns a process's number, or one like it that is not taken, and takes it."""
    while pid in taken:
        pid = pid + 10_000_000 if isinstance(pid, int) else f"{pid}'"
    taken.add(pid)
    return pid


def _pid(rank: int, pids: Mapping[int, int | str]) -> int | str:
    return pids.get(rank, rank)


def _named_process(rank: int, name: str, pids: Mapping[int, int | str]) -> list[Event]:
    own = {"ph": "M", "pid": _pid(rank, pids), "tid": 0}
    return [
        {"name": "process_name", **own, "args": {"name": name}},
        {"name": "process_sort_index", **own, "args": {"sort_index": rank}},
    ]


def _named_thread(rank: int, lane: int, pids: Mapping[int, int | str]) -> Event:
    name = "trains" if lane == TRAINING_THREAD else f"lane {lane}"
    own = {"ph": "M", "pid": _pid(rank, pids), "tid": _thread(lane)}
    return {"name": "thread_name", **own, "args": {"name": name}}


def _thread(lane: int) -> int:
    """The thread number of a lane, from 1 on: Perfetto takes thread 0 for the idle processor."""
    return lane - TRAINING_THREAD + 1


def _event(span: Span, pids: Mapping[int, int | str], zero: float) -> Event:
    is_lane = span.lane != TRAINING_THREAD
    # Whole microseconds: fractions that a reader rounds may make neighbours overlap.
    start, end = (round(1e6 * (at - zero)) for at in (span.start_seconds, span.end_seconds))
    details: dict[str, Any] = {"what": span.label} if span.label else {}
    if span.kind == "wire":
        details |= {"bytes": span.bytes, "group": span.group}
    return {
        "name": range_name(span.kind, span.label) if is_lane else span.label or span.kind,
        "cat": "gradwire", "ph": "X", "pid": _pid(span.rank, pids), "tid": _thread(span.lane),
        "ts": start, "dur": end - start,
        "args": details,
    }  # fmt: skip
