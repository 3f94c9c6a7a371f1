"""What "as good as dense" means, as pure functions of numbers; and what the papers found.

Runs are paired: the same seeds, so the same model at first and the same data in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

POINTS_OF_ACCURACY = 0.5
MOST_POINTS_OF_ACCURACY = 1.0
"""However far apart runs are: a method that fails now and then must not widen its own margin."""
BITS = 1.01
POINTS_OF_ERRORS = 1.0
LOSS = 1.10
LOSS_FLOOR = 0.01
"""Nats: where dense has learnt its data by heart, ten percent of nothing is no criterion."""
GLOBAL_TOPK = 1.0
"""Points of accuracy between gTop-k and top-k with error feedback."""


@dataclass(frozen=True)
class Verdict:
    """A number, what it may be at worst, and whether it is."""

    found: float
    limit: float
    passed: bool


def metric(
    kind: Literal["accuracy", "bits", "errors"], dense: Sequence[float], other: Sequence[float]
) -> Verdict:
    """The rule of a task's metric; runs that diverged (NaN) pass none."""
    if kind == "accuracy":
        margin = max(POINTS_OF_ACCURACY, pooled_deviation(dense, other))
        return _at_least(fmean(other), fmean(dense) - min(margin, MOST_POINTS_OF_ACCURACY))
    limit = BITS * fmean(dense) if kind == "bits" else fmean(dense) + POINTS_OF_ERRORS
    return _at_most(fmean(other), limit)


def reaches(kind: str, found: float, goal: float) -> bool:
    """Whether a number of that metric is at least as good as another, with no margin."""
    return found >= goal if kind == "accuracy" else found <= goal


def training_loss(dense: Sequence[float], other: Sequence[float]) -> Verdict:
    """Within ten percent: a method may not be saved by a test set that is too easy."""
    return _at_most(fmean(other), LOSS * fmean(dense) + LOSS_FLOOR)


def like_topk(topk: Sequence[float], global_topk: Sequence[float]) -> Verdict:
    """gTop-k's accuracy beside that of top-k with error feedback."""
    return _at_least(fmean(global_topk), fmean(topk) - GLOBAL_TOPK)


def pooled_deviation(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two samples of equal weight; 0 for single runs, which have none."""
    if min(len(one), len(other)) < 2:
        return 0.0
    return math.sqrt((deviation(one) ** 2 + deviation(other) ** 2) / 2)


def deviation(values: Sequence[float]) -> float:
    """Of a sample; NaN if one of it is not finite."""
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
"""What Lin et al. 2018 and Shi et al. 2019 report, by (task that mirrors theirs, method)."""
