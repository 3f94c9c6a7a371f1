"""The meaning of "as good as dense", as pure functions of numbers; and the papers' results.

Runs are paired: they have the same seeds, so the same initial model and the same data in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

POINTS_OF_ACCURACY = 0.5
MOST_POINTS_OF_ACCURACY = 1.0
"""The most that the margin may grow: a method that fails now and then must not widen its own
margin."""
BITS = 1.01
POINTS_OF_ERRORS = 1.0
LOSS = 1.10
LOSS_FLOOR = 0.01
"""In nats: if dense has learnt its data by heart, ten percent of nothing is no criterion."""
GLOBAL_TOPK = 1.0
"""Points of accuracy between gTop-k and top-k with error feedback."""


@dataclass(frozen=True)
class Verdict:
    """A number, its limit, and whether it keeps the limit."""

    found: float
    limit: float
    passed: bool


def metric(
    kind: Literal["accuracy", "bits", "errors"], dense: Sequence[float], other: Sequence[float]
) -> Verdict:
    """Applies the rule of a task's metric; runs that diverged (NaN) never pass."""
    if kind == "accuracy":
        margin = max(POINTS_OF_ACCURACY, pooled_deviation(dense, other))
        return _at_least(fmean(other), fmean(dense) - min(margin, MOST_POINTS_OF_ACCURACY))
    limit = BITS * fmean(dense) if kind == "bits" else fmean(dense) + POINTS_OF_ERRORS
    return _at_most(fmean(other), limit)


def reaches(kind: str, found: float, goal: float) -> bool:
    """Whether a number of that metric is at least as good as another, with no margin."""
    return found >= goal if kind == "accuracy" else found <= goal


def training_loss(dense: Sequence[float], other: Sequence[float]) -> Verdict:
    """Requires a loss within ten percent, so that a test set that is too easy does not save a
    method."""
    return _at_most(fmean(other), LOSS * fmean(dense) + LOSS_FLOOR)


def like_topk(topk: Sequence[float], global_topk: Sequence[float]) -> Verdict:
    """Compares gTop-k's accuracy with that of top-k with error feedback."""
    return _at_least(fmean(global_topk), fmean(topk) - GLOBAL_TOPK)


def pooled_deviation(one: Sequence[float], other: Sequence[float]) -> float:
    """The pooled deviation of two samples of equal weight; 0 for single runs, which have none."""
    if min(len(one), len(other)) < 2:
        return 0.0
    return math.sqrt((deviation(one) ** 2 + deviation(other) ** 2) / 2)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; NaN if a value is not finite."""
    return stdev(values) if all(map(math.isfinite, values)) else math.nan


def _at_least(found: float, limit: float) -> Verdict:
    return Verdict(found, limit, found >= limit)


def _at_most(found: float, limit: float) -> Verdict:
    return Verdict(found, limit, found <= limit)


PAPERS = {
    ("glyphs", "dgc"): "+0.06 to +0.37 points (CIFAR-10, ResNet-110, 4 to 32 nodes)",
    ("glyphs", "ef-topk"): "-1.00 to +0.10 points (the same; their Gradient Dropping)",
    ("glyphs", "gtopk-published"): "curves nearly coincide (CIFAR-10, ResNet-20, VGG-16)",
    ("language", "dgc"): "72.24 against 72.30 perplexity (Penn Treebank)",
    ("speech", "dgc"): "-0.39 and -0.03 points of words (LibriSpeech clean, other)",
    ("speech", "ef-topk"): "14.1 % of words, DGC 12.9 % (AN4)",
}
PAPERS |= {("digits", method): text for (task, method), text in PAPERS.items() if task == "glyphs"}
"""The results of Lin et al. 2018 and Shi et al. 2019, by (task that mirrors theirs, method)."""
