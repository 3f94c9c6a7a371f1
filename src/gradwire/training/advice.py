"""What attach says of a strategy and an optimizer that are not known to be sound together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from gradwire.errors import UsageError
from gradwire.soundness import (
    SoundnessWarning,
    Verdict,
    answering,
    name_of,
    sound,
    update_rule,
)
from gradwire.strategy import Strategy
from gradwire.training.recommend import frontier, with_moments_of
from gradwire.warmup import Warmup

_MOST_RANKS = 16  # that bytes are counted for, in lockstep: more would take seconds


def advise(
    strategies: Iterable[Strategy], optimizer: object, world: int, *, warmup: Warmup | None,
    strict: bool, quiet: bool,
) -> None:  # fmt: skip
    """Warn, with an alternative, of a strategy that is not sound with an optimizer, if one is not.

    world: how many ranks average. warmup: the run's. strict: refuse what is unsound, on every
    rank, and warn of what is not known. quiet: do not warn; another rank does.

    Raises:
        UsageError: a strategy is unsound and strict is set, or no optimizer has that name.
    """
    verdicts = [(strategy, sound(strategy, optimizer)) for strategy in answering(strategies)]
    if warmup is None or not any(isinstance(first, str) for first in warmup.densities):
        verdicts = [(strategy, _from_the_first_step(verdict)) for strategy, verdict in verdicts]
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
        raise UsageError(f"strict=True refuses a strategy with which a model learns less; {text}")
    warnings.warn(text, SoundnessWarning, stacklevel=4)


def _from_the_first_step(verdict: Verdict) -> Verdict:
    """The verdict where a run does not begin by another strategy."""
    evidence = verdict.evidence
    if evidence is None or not evidence.begins:
        return verdict
    why = (
        f"it is sound only where the first {evidence.warmup:.0%} of the steps travel by "
        f"'{evidence.begins}', as by warmup=gradwire.Warmup(steps, ['{evidence.begins}'])"
    )
    return Verdict("unsound", why, evidence)


def instead(optimizer: object, world: int) -> str:
    """What sends least of the sound strategies that work beside the optimizer as it is, from the
    first step on."""
    asks = getattr(optimizer, "asks_the_plan", False)
    *_, (strategy, times) = [
        (strategy, times)
        for strategy, times in frontier(optimizer, min(max(world, 2), _MOST_RANKS))
        if _works_beside(strategy, optimizer, asks)
    ]
    fewer = f"{times:.0f}" if times >= 10 else f"{times:.2g}"
    return (
        f"'{with_moments_of(optimizer, strategy)}', {fewer} times fewer bytes than DDP sends in "
        "fp32."
    )


def _works_beside(strategy: Strategy, optimizer: object, asks: bool) -> bool:
    """asks: whether the optimizer leaves the moments to a plan that keeps them."""
    feedback = strategy.feedback
    if feedback is None or not feedback.moments():
        return True
    evidence = sound(strategy, optimizer).evidence
    is_sound_at_once = evidence is None or not evidence.warmup
    return asks and is_sound_at_once and feedback.rule == update_rule(optimizer)
