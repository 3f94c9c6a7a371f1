"""Whether a scenario ended as it must: right, or with an error on every rank that helps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenario import ALIKE, HARMLESS, Scenario

WHERE = re.compile(r"bucket \d|attach|flush|round|step \d|payload|message")
"""An error must say what failed: a bucket, a step, a message, or attaching."""

ADVICE = re.compile(
    r"\b(Restart|Attach|Detach|Look|Call|Check|Run|Use|Pass|Give|Install|Choose|See|Load)\b"
    r"|run `gradwire"
)
"""An error must say what to do."""

GRACE_SECONDS = 30.0
"""An error may come so much later than the timeout: ranks that are missing are looked for, and the
test machines are slow."""


@dataclass(frozen=True)
class Rank:
    """How one rank of an attempt ended. story: what `job.run` returned, None if it was killed."""

    rank: int
    code: int
    hung: bool
    story: dict[str, Any] | None

    @property
    def raised(self) -> dict[str, Any] | None:
        """The error that it ended with."""
        return self.story["raised"] if self.story else None


def ranks_of(own: Scenario, folder: Path, attempt: int) -> list[Rank]:
    """Reads how the ranks of one attempt ended."""
    found = []
    for r in range(own.world):
        ended = json.loads((folder / f"ended-{attempt}-{r}.json").read_text())
        path = folder / f"story-{attempt}-{r}.json"
        story = json.loads(path.read_text()) if path.exists() else None
        found.append(Rank(r, ended["code"], ended["hung"], story))
    return found


def complaints(own: Scenario, folder: Path) -> list[str]:
    """Returns what was wrong with the end of a scenario: nothing, if all is as it must be."""
    ranks = ranks_of(own, folder, 1)
    hung = [f"rank {r.rank} hung:\n{_output(folder, r.rank)}" for r in ranks if r.hung]
    if hung:
        return hung
    if own.kind in HARMLESS:
        found = _right(ranks)
    elif own.kind in ALIKE or own.kind in ("flips what arrives", "no memory"):
        told = any(r.story is None or r.raised for r in ranks)
        found = _told(own, ranks, folder) if told else _alike(ranks)
    else:
        found = _told(own, ranks, folder)
    if own.resumes:
        again = ranks_of(own, folder, 2)
        before = next((r.story["undisturbed"] for r in ranks if r.story), None)
        found += [f"resumed: {text}" for text in _right(again, before)]
    return found


def _output(folder: Path, rank: int) -> str:
    """Returns the end of what a rank printed: that of one that hung tells where."""
    return (folder / f"output-1-{rank}").read_text()[-4000:]


def _right(ranks: Sequence[Rank], weights: str | None = None) -> list[str]:
    """All ranks must have the weights of an undisturbed run."""
    found = []
    for r in ranks:
        if r.story is None or r.raised:
            found.append(f"rank {r.rank} did not end: {r.raised or r.code}")
        elif weights is None and r.story["undisturbed"] is None:
            pass  # another plan may be found each time
        elif r.story["weights"] != (weights or r.story["undisturbed"]):
            found.append(f"rank {r.rank} has other weights than in an undisturbed run")
    return found or _alike(ranks)


def _alike(ranks: Sequence[Rank]) -> list[str]:
    """All ranks must have the same weights; shards are compared by their undisturbed runs."""
    found = {(r.story["undisturbed"], r.story["weights"]) for r in ranks if r.story}
    same = len(found) == len({before for before, _ in found})
    return [] if same else ["ranks have different weights, and no error"]


def _told(own: Scenario, ranks: Sequence[Rank], folder: Path) -> list[str]:
    """Every rank that lives must have an error, in time, that names the rank and helps."""
    struck = [json.loads(path.read_text())["at"] for path in folder.glob("struck-*.json")]
    found = []
    for r in ranks:
        if r.story is None:
            if own.kind != "killed" or r.rank != own.rank:
                found.append(f"rank {r.rank} ended by itself, code {r.code}")
            continue
        if r.raised is None:
            if own.kind == "misses a backward" and r.rank == own.rank:
                continue  # it came to its end one step earlier
            found.append(f"rank {r.rank} went on as if nothing had happened")
            continue
        found += _helps(own, r, r.raised)
        late = r.raised["at"] - min(struck, default=r.raised["at"])
        limit = own.timeout_seconds + GRACE_SECONDS
        if late > limit and own.kind != "stopped for long":
            found.append(f"rank {r.rank} heard of it after {late:.0f} s")
    return found


def _helps(own: Scenario, rank: Rank, raised: dict[str, Any]) -> list[str]:
    text, kind = raised["text"], raised["kind"]
    is_own = rank.rank == own.rank or own.kind == "switch cut"
    if is_own and (kind in ("ToldTo", "MemoryError") or own.kind.startswith("other")):
        return []  # its own error
    if own.job.front == "fsdp" and kind in ("RuntimeError", "DistBackendError"):
        return []  # torch's own collectives between shards
    told = f"rank {rank.rank}: {kind}: {text[:300]}"
    wrong = []
    if not raised["ours"]:
        wrong.append("not gradwire's")
    # A rank that hosts the store takes it along when it ends with its own error, which names the
    # rank: the others are sent to its log.
    by_host = own.job.store == "tcp" and rank.rank and "hosts the rendezvous store" in text
    # In a group of replicas others are seen that wait for a rank of another group.
    is_any = is_own or own.job.front == "fsdp"
    named = r"rank \d" if is_any else rf"rank ([\d, ]*\b)?{own.rank}\b"
    if not by_host and not re.search(named, text):
        wrong.append("does not name the rank")
    if not WHERE.search(text):
        wrong.append("does not say where")
    if not ADVICE.search(text):
        wrong.append("does not say what to do")
    return [f"{', '.join(wrong)}: {told}"] if wrong else []
