"""Which tensors travel together and by which option, for one link: exactly.

    compute  ▂▂▂▂▂▂▂▂▂▂ encode ▂▂▂▂▂▂▂▂▂▂▂▂▂              │ decode
    cpu                encode ── encode                  │       decode     one worker, serial
    link         send      ──── send ──── send           │                  one, in order
                                                         all has arrived

Tensors are numbered in the order of backward; tensor j's gradient is ready at ready[j] seconds if
nothing is delayed. A group of tensors i … e-1 is ready at ready[e-1] + delay, where delay is what
encodes have taken on the compute lane so far. Then, by the lane of its option:

    none    it is sent as it is: no encode, no decode
    gpu     the encode runs on the compute lane at once and adds to delay
    cpu     encodes run on a worker of their own, one after the other

The link serves groups in order. Decodes are a debt: they run when everything else has ended, one
after the other, whatever their lane. The time of a plan is

    max(end of compute, end of the worker, end of the link) + Σ decode

That is a simplification: receivers decode when all has arrived, although they could decode one
group while another is on its way, and on two lanes at once. `planner.timeline` knows better.

Method: labels (what all lanes have done after some tensors: delay, cpu clock, link clock, debt)
are extended by every group and every option. Time that is owed at the end might as well be spent
at the beginning, so that three numbers decide the rest: delay, cpu and link, each with the debt.
They never fall when another rises, so a label that is nowhere earlier than another is dropped, as
is one whose lower bound does not beat the best plan known (`kernels.one_link`). Where too many
labels are left, the nearest are united and the result says how far it may be off.
Source: the exact method is our own; the lanes are those of Wang et al. 2023 ("Hi-Speed DNN
Training with Espresso", section 4.3), its groups those of Wang et al. 2021 ("MergeComp").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from gradwire.errors import KernelError, PlanError
from gradwire.kernels import lanes
from gradwire.kernels.lanes import LANES
from gradwire.kernels.one_link import plan_link, plan_seconds
from gradwire.kernels.tensors import real
from gradwire.planner.curves import FREE, Cost, Curve, check_schedule, curve_of

MOST_LABELS, LEAST_LABELS = 1024, 6  # kept per tensor, unless more or fewer are asked for
EFFORT = 1 << 20  # labels per tensor times tensors squared, in between

Range: TypeAlias = tuple[int, int]
"""Tensors first … end-1."""


@dataclass(frozen=True, init=False)
class Option:
    """One way for a group to travel: lane "none", "gpu" or "cpu", and three costs of its size.

    A cost is a Curve or a pair (fixed, per_unit), in seconds and the unit of `sizes`. Lane "none"
    neither encodes nor decodes. Raises PlanError.
    """

    lane: str
    encode: Curve
    send: Curve
    decode: Curve

    def __init__(
        self, lane: str = "none", encode: Cost = FREE, send: Cost = FREE, decode: Cost = FREE
    ) -> None:
        if lane not in LANES:
            raise PlanError(f"an option's lane is one of {', '.join(LANES)}, not {lane!r}; choose")
        object.__setattr__(self, "lane", lane)
        for name, cost in (("encode", encode), ("send", send), ("decode", decode)):
            object.__setattr__(self, name, curve_of(name, cost))
        if lane == "none" and not (_is_free(self.encode) and _is_free(self.decode)):
            raise PlanError(
                'an option of lane "none" neither encodes nor decodes, but has '
                f"encode={encode!r} and decode={decode!r}; leave them out, or name the lane "
                '"gpu" or "cpu"'
            )


@dataclass(frozen=True)
class Solution:
    """A plan and how far from the best one it can be.

    groups: in order, covering all tensors. chosen: for each group the number of its option. time:
    seconds until all is decoded, what `seconds` says of the plan. lower_bound: no plan is
    faster, of those that `max_span` and `max_groups` allow. labels: how many were kept.
    """

    groups: list[Range]
    chosen: list[int]
    time: float
    lower_bound: float
    labels: int

    @property
    def gap(self) -> float:
        """At most this part of the lower bound could be gained: 0.01 is one hundredth."""
        return 0.0 if self.is_exact else self.time / self.lower_bound - 1.0

    @property
    def is_exact(self) -> bool:
        """Whether the plan is proved to be the best, but for rounding (1e-12 of its time)."""
        return self.lower_bound >= self.time


def solve(
    ready: Sequence[float],
    sizes: Sequence[float],
    options: Sequence[Option],
    *,
    tolerance: float = 0.0,
    max_span: int | None = None,
    max_groups: int | None = None,
    max_labels: int | None = None,
) -> Solution:
    """The best plan for one link, with a lower bound on the time of every plan.

    ready: seconds, ascending; sizes: in the unit of the options' costs; both in the order of
    backward. tolerance: a plan may take so much longer than the best (0.01: one hundredth), which
    is found sooner. max_span: tensors in a group at most; max_groups: groups at most; None: any.
    max_labels: where more are left at one tensor, those near another are dropped, wider apart the
    more there are; the least lower bound of what was dropped is then what is proved. None: 1,024
    for 32 tensors, fewer for more, down to 6.

    Of equal plans the one found first is returned: evenly cut ones, of one option, before others,
    few groups before many, lower numbers of options before higher. Raises PlanError.
    """
    problem = _problem(ready, sizes, options, max_span, max_groups)
    if not 0 <= real(tolerance) < math.inf:
        raise PlanError(
            f"tolerance is a part of the time, finite and not negative, not {tolerance}; pass 0.0 "
            "for the best plan, or 0.01 for one within a hundredth of it"
        )
    labels = _usual_labels(problem.n) if max_labels is None else max_labels
    _check_count("max_labels", labels)
    try:
        found = plan_link(problem, tolerance, labels)
    except KernelError as error:
        raise PlanError(f"the planner's input: {error}") from error
    groups = list(zip([0, *found.ends], found.ends))
    return Solution(groups, found.options, found.seconds, found.lower_bound, found.labels)


def _usual_labels(n: int) -> int:
    """As many as take at most 10 ms for 32 tensors, about 100 ms for 314, a second for 1,000."""
    return min(max(EFFORT // n**2, LEAST_LABELS), MOST_LABELS)


def seconds(
    groups: Sequence[Range],
    chosen: Sequence[int],
    ready: Sequence[float],
    sizes: Sequence[float],
    options: Sequence[Option],
) -> float:
    """The time of a plan: when all is decoded. All times of this module are what this says.

    groups: (first, end) each, one after the other, all tensors; chosen: numbers of options.
    Raises PlanError.
    """
    problem = _problem(ready, sizes, options, None, None)
    ends = [end for _, end in groups]
    if [first for first, _ in groups] != [0, *ends[:-1]] or not _covers(ends, len(sizes)):
        raise PlanError(
            f"groups are (first, end), not empty, one after the other, from 0 to {len(sizes)}, "
            f"not {list(groups)}; cut the tensors so"
        )
    if len(chosen) != len(ends) or not all(0 <= o < len(options) for o in chosen):
        raise PlanError(
            f"each of {len(ends)} groups has an option from 0 to {len(options) - 1}, not "
            f"{list(chosen)}; choose one for each"
        )
    return plan_seconds(problem, ends, chosen)


def _covers(ends: Sequence[int], n: int) -> bool:
    return bool(ends) and ends[-1] == n and all(a < b for a, b in zip((0, *ends), ends))


def _is_free(cost: Curve) -> bool:
    return all(y == 0 and slope == 0 for _, y, slope in cost.rows)


def _problem(
    ready: Sequence[float],
    sizes: Sequence[float],
    options: Sequence[Option],
    max_span: int | None,
    max_groups: int | None,
) -> lanes.Problem:
    check_schedule(ready, sizes)
    if not options:
        raise PlanError("there is one option at least, but there is none; pass Option(send=…)")
    span, most = (len(sizes) if x is None else x for x in (max_span, max_groups))
    _check_count("max_span", span)
    _check_count("max_groups", most)
    if span * most < len(sizes):
        raise PlanError(
            f"{most} groups of at most {span} tensors hold {span * most}, but there are "
            f"{len(sizes)}; raise max_groups or max_span"
        )
    ways = tuple(
        lanes.Option(LANES.index(o.lane), o.encode.rows, o.send.rows, o.decode.rows)
        for o in options
    )
    ends = tuple(accumulate(map(float, sizes), initial=0.0))
    return lanes.Problem(tuple(map(float, ready)), ends, ways, span, most)


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise PlanError(f"{name} is at least 1, not {value}; raise it, or leave it out")
