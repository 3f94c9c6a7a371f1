"""Recommends a strategy for an optimizer, and warns of strategies that are not sound with it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradwire.agreement import agreeing
from gradwire.errors import PlanError, UsageError
from gradwire.families import COLLECTIVES, COMPRESSORS, FEEDBACK
from gradwire.member import Evidence
from gradwire.runtime.lockstep import lockstep
from gradwire.soundness import (
    SoundnessWarning,
    Verdict,
    adds_momentum,
    answering,
    has_momentum,
    is_exact_enough,
    leaves_moments,
    name_of,
    sound,
    update_rule,
)
from gradwire.strategy import Strategy
from gradwire.warmup import Warmup, of_density

FP32 = "none | allreduce"
_SHAPE = 512, 512
_MOST_RANKS = 16  # `instead` counts bytes for at most so many, in lockstep: more take seconds


def recommend(optimizer: object, fewer: float | None = None, ranks: int = 4) -> Strategy:
    """Returns the sound strategy that is nearest to dense among those that send few enough bytes.

    Args:
        optimizer: a torch optimizer, or the name of one, as "adamw", "muon", "sgd", or "sgdm" for
            SGD with momentum. A strategy that keeps the moments uses this optimizer's numbers, or
            torch's defaults.
        fewer: how many times fewer bytes a rank shall send than with DDP in fp32: for a matrix of
            512 × 512, in the mean over a run, with the warm-up that the strategy needs. By
            default as many as one can that works with the optimizer as it is, without a warm-up,
            and has not been shown to need long runs.
        ranks: the number of ranks that average. Bytes are counted in lockstep, which takes memory
            and time for each.

    Example:
        >>> print(gradwire.recommend("adamw"))
        qsgd | alltoall
        >>> print(gradwire.recommend("adamw", fewer=12))
        lloyd(1)+adam | allgather

    Raises:
        UsageError: no optimizer has that name, or a number is out of range.
        PlanError: no strategy that is known to be sound sends so few bytes; the message lists
            those that are sound.
    """
    is_many = isinstance(ranks, int) and ranks >= 2
    is_factor = fewer is None or (isinstance(fewer, int | float) and fewer > 0)
    if not is_many or not is_factor:
        raise UsageError(
            "ranks must be a whole number, at least 2, and fewer (how many times fewer bytes) a "
            f"number above 0; got ranks={ranks!r} and fewer={fewer!r}. Use for example fewer=32, "
            "ranks=4."
        )
    if fewer is None:
        return with_moments_of(optimizer, _plainest(optimizer, ranks)[0])
    known = frontier(optimizer, ranks)
    for strategy, times in known:
        if times >= fewer:
            return with_moments_of(optimizer, strategy)
    shown = "; ".join(f"'{strategy}' {times:.3g} times" for strategy, times in known)
    most = math.floor(100 * known[-1][1]) / 100  # rounded up, it would be refused again
    raise PlanError(
        f"none of the strategies that are sound with {name_of(optimizer)} sends {fewer:g} times "
        f"fewer bytes among {ranks} ranks. Sound are: {shown}. Pass fewer={most:.2f} or less."
    )


def frontier(optimizer: object, ranks: int = 4) -> list[tuple[Strategy, float]]:
    """Returns all strategies known to be sound with an optimizer, by a run or by their format, and
    how many times fewer bytes they send, the nearest to dense first. Arguments and errors are
    those of `recommend`."""
    found = [(s, 1 / _sent(s, ranks, verdict.evidence)) for s, verdict in all_sound(optimizer)]
    return sorted(found, key=lambda pair: pair[1])


def all_sound(optimizer: object) -> Iterator[tuple[Strategy, Verdict]]:
    """Yields all strategies known to be sound with an optimizer, and why, but those that would add
    momentum to it. Errors are those of `recommend`."""
    for strategy in _candidates():
        verdict = sound(strategy, optimizer)
        if verdict.kind == "sound" and not adds_momentum(strategy, optimizer):
            yield strategy, verdict


def with_moments_of(optimizer: object, strategy: Strategy) -> Strategy:
    """Returns the strategy, with the optimizer's numbers if it keeps the optimizer's moments."""
    feedback = strategy.feedback
    if feedback is None or not feedback.moments():
        return strategy
    if feedback.rule == "linear" and not has_momentum(optimizer):
        return strategy
    first: dict[str, Any] = (getattr(optimizer, "param_groups", None) or [{}])[0]
    agreed = agreeing(feedback, first)
    return strategy if agreed == feedback else replace(strategy, feedback=agreed)


def advise(
    strategies: Iterable[Strategy], optimizer: object, world: int, *, warmup: Warmup | None,
    strict: bool, quiet: bool,
) -> None:  # fmt: skip
    """Warn of a strategy that is not sound with an optimizer, if there is one, and name another.

    world: the number of ranks that average. warmup: the run's. strict: refuse an unsound strategy,
    on every rank, and warn of one of which it is not known. quiet: do not warn; another rank does.

    Raises:
        UsageError: a strategy is unsound and strict is set, or no optimizer has that name.
    """
    verdicts = [(strategy, sound(strategy, optimizer)) for strategy in answering(strategies)]
    first = warmup.densities[0] if warmup else None
    verdicts = [(strategy, _begun_by(first, verdict)) for strategy, verdict in verdicts]
    wrong = [pair for pair in verdicts if pair[1].kind != "sound"]
    if not wrong:
        return
    strategy, verdict = min(wrong, key=lambda pair: pair[1].kind != "unsound")
    refused = strict and verdict.kind == "unsound"
    if quiet and not refused:
        return
    known = "is unsound" if verdict.kind == "unsound" else "is not known to be sound"
    shown = f" ({verdict.evidence.row})" if verdict.evidence else ""
    text = f"'{strategy}' {known} with {name_of(optimizer)}: {verdict.why}{shown}. "
    text += "Sound is " + instead(optimizer, world)
    if refused:
        raise UsageError(f"with strict=True a strategy must not be unsound; {text}")
    warnings.warn(text, SoundnessWarning, stacklevel=4)


def _begun_by(first: float | str | None, verdict: Verdict) -> Verdict:
    """Returns the verdict for a run that begins by this: what its evidence began with holds for
    strategies that lose no more. A dense beginning was not shown to do as well."""
    if verdict.evidence is None or not isinstance(first, str):
        return from_the_first_step(verdict)
    own, shown = Strategy.parse(first), Strategy.parse(verdict.evidence.begins or FP32)
    once = own.collective.compresses_again <= shown.collective.compresses_again
    is_fine = once and own.compressor.is_as_fine_as(shown.compressor)
    is_exact = is_exact_enough(own.compressor) and not own.collective.selects
    return verdict if is_fine or is_exact else from_the_first_step(verdict)


def from_the_first_step(verdict: Verdict) -> Verdict:
    """Returns the verdict for a run without the other strategy that its evidence began with."""
    evidence = verdict.evidence
    if evidence is None or not evidence.begins:
        return verdict
    why = (
        f"it is sound only if the first {evidence.part} of the steps are sent by "
        f"'{evidence.begins}'; pass warmup=gradwire.Warmup(steps, ['{evidence.begins}'])"
    )
    return Verdict("unsound", why, evidence)


def instead(optimizer: object, world: int, with_any: bool = False) -> str:
    """Returns, in words, the strategy that sends the fewest bytes of the sound ones that work with
    the optimizer as it is, from the first step on, in runs of any length. with_any: of those
    only that are sound with every optimizer."""
    strategy, times = _plainest(optimizer, min(max(world, 2), _MOST_RANKS), with_any)
    fewer = f"{times:.0f}" if times >= 10 else f"{times:.2g}"
    return (
        f"'{with_moments_of(optimizer, strategy)}', {fewer} times fewer bytes than DDP sends in "
        "fp32."
    )


def _plainest(optimizer: object, ranks: int, with_any: bool = False) -> tuple[Strategy, float]:
    """Returns the sound strategy that sends the fewest bytes of those that work with the optimizer
    as it is, from the first step on, in runs of any length, and how many times fewer they are."""
    *_, last = [
        (strategy, times)
        for strategy, times in frontier(optimizer, ranks)
        if works_beside(strategy, optimizer)
        and not _asks_for_long_runs(sound(strategy, optimizer))
        and (not with_any or sound(strategy, None).kind == "sound")
    ]
    return last


def _asks_for_long_runs(verdict: Verdict) -> bool:
    return verdict.evidence is not None and verdict.evidence.turns > 0


def works_beside(strategy: Strategy, optimizer: object) -> bool:
    """Whether a sound strategy works with the optimizer as it is, from the first step on."""
    feedback = strategy.feedback
    if feedback is None or not feedback.moments():
        return True
    evidence = sound(strategy, optimizer).evidence
    is_sound_at_once = evidence is None or not evidence.warmup
    is_its_own = leaves_moments(optimizer) and feedback.rule == update_rule(optimizer)
    return is_its_own and is_sound_at_once


def _candidates() -> Iterator[Strategy]:
    """Yields strategies of formats as good as exact, and those that evidence names, of gradwire's
    own members: a recommendation does not depend on what else is installed."""
    texts = [FP32]
    for kind in COMPRESSORS.own.values():
        try:
            compressor = kind()
        except TypeError:  # a compressor with a required parameter is no format
            continue
        if is_exact_enough(compressor) and compressor.claims(1 << 20).fixed:
            way = "allreduce" if compressor.claims(1 << 20).sums else "alltoall"
            texts.append(f"{compressor} | {way}")
    families = (COMPRESSORS, FEEDBACK, COLLECTIVES)
    texts += [e.strategy for family in families for m in family.own.values() for e in m.evidence]
    yield from map(Strategy.parse, dict.fromkeys(texts))


def _sent(strategy: Strategy, ranks: int, evidence: Evidence | None) -> float:
    """Returns the bytes sent as a part of fp32's, in the mean over a run."""
    own = _share(str(strategy), ranks)
    if evidence is None or not evidence.warmup:
        return own
    stages = [of_density(strategy, density, ranks) for density in evidence.densities]
    texts = list(map(str, stages)) or [evidence.begins or FP32]
    first = sum(_share(text, ranks) for text in texts) / len(texts)
    return evidence.warmup * first + (1 - evidence.warmup) * own


@lru_cache(maxsize=256)
def _share(strategy: str, ranks: int) -> float:
    """Returns the bytes of a step by this strategy as a part of fp32's, in the mean over turns."""
    feedback = Strategy.parse(strategy).feedback
    turns = feedback.turns if feedback else 1
    dice = (torch.Generator().manual_seed(rank) for rank in range(ranks))
    gradients = [
        torch.randn(_SHAPE, generator=own, dtype=torch.float32, device="cpu") for own in dice
    ]
    return _bytes(strategy, gradients, turns) / turns / _bytes(FP32, gradients, 1)


def _bytes(strategy: str, gradients: list[Tensor], steps: int) -> float:
    """Returns the bytes sent in `steps` steps, each by the rank that sends most in it."""
    found = (lockstep(strategy, gradients, step=step)[1] for step in range(steps))
    return sum(max(trace.bytes_sent) for trace in found)
