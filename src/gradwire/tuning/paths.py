"""Paths for a running job: measures their parts one by one, and promising paths as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from gradwire.planner.candidates import FP32
from gradwire.planner.paths import compressed_by, in_pieces, whole, with_paths
from gradwire.planner.profile import LocalCost, Profile
from gradwire.progress import Progress, silent
from gradwire.strategy import Strategy
from gradwire.training.session import Session
from gradwire.tuning.agree import from_first
from gradwire.tuning.probe import Probe
from gradwire.tuning.singles import measure_local, measure_moves, of_paths

_RUNS, _PATIENCE_SECONDS = 5, 0.1  # for one move: few, as the job waits


def with_measured_paths(
    profile: Profile, session: Session, patterns: Sequence[str], usable: Callable[[str], bool],
    progress: Progress = silent,
) -> Profile:  # fmt: skip
    """Returns the profile with the promising paths of each pattern, measured as strategies are.
    Collective, between two steps. usable: whether a strategy may be used; rank 0's answer counts.

    Single moves and compressors are measured where the profile has none of them.
    """
    largest = sum(r.parameter.elements for r in profile.ready if not r.parameter.sparse)
    performer, machines, circle = session.performers[0], session.machines, session.circle
    with torch.random.fork_rng(devices=[]):  # leaves the job's own random state untouched
        parts = _parts(profile, session, patterns, largest, progress)

        def offered() -> str:
            found, texts, offers = with_paths(parts, patterns, usable)
            for offer in offers:
                progress(str(offer))
            new = [text for text in texts if text not in parts.strategies]
            return json.dumps([found.to_json(), new])

        told, new = json.loads(from_first(circle, offered))
        probe = Probe(performer, machines, profile.dtype, profile.width, circle)
        costs = probe.costs(new, largest, progress)
    own = replace(Profile.from_json(told), strategies={**parts.strategies, **costs})
    return Profile.from_json(from_first(circle, own.to_json))


def _parts(
    profile: Profile, session: Session, patterns: Sequence[str], largest: int,
    progress: Progress,
) -> Profile:  # fmt: skip
    """Returns the profile with the costs of single moves and compressors."""
    moves, compressors = profile.moves, dict[str, LocalCost](profile.compressors)
    if not moves:
        moves = measure_moves(
            session.performers[0], session.machines, 4 * largest, session.circle,
            kinds=of_paths(profile.dtype), runs=_RUNS, patience_seconds=_PATIENCE_SECONDS,
            progress=progress,
        )  # fmt: skip
    for text in (FP32, *map(whole, patterns)):
        left = "none" if text == FP32 else compressed_by(text)
        name = f"{left} @ {session.device.type}"
        if name not in compressors and Strategy.parse(text).compressor.claims(1 << 10).fixed:
            progress("compressing", now=left)
            compressors[name] = measure_local(text, session.device, largest, session.circle)
        name = f"{in_pieces(left)} @ {session.device.type}"
        if name not in compressors and left != "none":
            compressors[name] = measure_local(
                text, session.device, largest, session.circle, session.world
            )
    return replace(profile, moves=moves, compressors=compressors)
