"""One call of one function: drawn from a key, made, and judged.

A call is good if it ends with a result or with one of gradwire's own errors, whatever the values
that its annotations allow. Everything else is a finding: see docs/design/fuzzing.md.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import gradwire
from gradwire.errors import GradwireError
from gradwire.kernels.native import TWIN, VARIABLE, available_sets, use
from harness.draws import Draw, made
from harness.spoil import is_whole, spoil

ACCEPTED, REFUSED, FOUND = "accepted", "refused", "found"
NO_MEMORY = "no memory"
"""The outcome of a call that requested more memory than the machine has; it is no finding."""
LEAST_TEXT = 40
"""The least number of characters of an error that states the rule, the value and a next step."""
_SOURCE = str(Path(gradwire.__file__).parent)
Same = Callable[[dict[str, Any], Any], object]


@dataclass(frozen=True)
class Target:
    """A function, and how calls of it are drawn.

    same: picks what must be equal for the twin, to the bit, of the arguments and the result; None
    if nothing. weight: how often it is called, beside others. spoiled: the part of spoiled calls.
    """

    name: str
    do: Callable[..., object]
    draw: Callable[[Draw], dict[str, object]]
    same: Same | None
    weight: int = 4
    spoiled: float = 0.6


class Outcome(NamedTuple):
    """What became of a call. kind: ACCEPTED, REFUSED, NO_MEMORY or FOUND. Of findings, what: one
    word or two; where: the line of gradwire that was reached last; text: the whole story."""

    kind: str
    what: str = ""
    where: str = ""
    text: str = ""


def everything(given: dict[str, Any], result: Any) -> object:
    """Returns all tensors that a call may have written, and its result."""
    return [value for value in given.values() if _holds_tensors(value)], result


def _holds_tensors(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor)


def drawn(target: Target, key: str) -> tuple[Draw, dict[str, object]]:
    """Draws the arguments of a target: the same whenever the key is the same."""
    draw = Draw(key)
    given = target.draw(draw)
    if draw.chance(target.spoiled) and given:
        spoil(draw, given)
    return draw, given


def call(target: Target, key: str) -> Outcome:
    """Makes the call of this key. KeyboardInterrupt, which ends a long call, is not caught."""
    try:
        draw, given = drawn(target, key)
    except Exception:
        return Outcome(FOUND, "the harness failed", "", traceback.format_exc())
    which = draw.one(available_sets()[1:] or [TWIN])
    compares = target.same is not None and draw.chance(0.15)
    with use(which):
        outcome, seen = _made(target, given)
    if not compares or draw.aliased or outcome.kind in (FOUND, NO_MEMORY):
        return outcome
    with _twin():
        other, expected = _made(target, drawn(target, key)[1])
    if other.kind == FOUND:
        return other._replace(what=f"twin: {other.what}")
    if other.kind == NO_MEMORY:
        return outcome
    if other.kind != outcome.kind:
        text = f"{which}: {outcome.kind} {outcome.text}\ntwin: {other.kind} {other.text}"
        return Outcome(FOUND, "the twin differs", "", text)
    if outcome.kind == ACCEPTED and not alike(seen, expected):
        return Outcome(FOUND, "the twin differs", "", f"{which}: {seen!r}\ntwin: {expected!r}")
    return outcome


@contextlib.contextmanager
def _twin() -> Iterator[None]:
    os.environ[VARIABLE] = TWIN  # for code that does not load torch
    try:
        with use(TWIN):
            yield
    finally:
        del os.environ[VARIABLE]


def _made(target: Target, given: dict[str, object]) -> tuple[Outcome, object]:
    """Makes the call. Returns what became of it, and what is to be compared."""
    try:
        with warnings.catch_warnings(), torch.no_grad():  # as in hooks of backward
            warnings.simplefilter("ignore")
            ready = {name: made(value) for name, value in given.items()}
            result = target.do(**ready)
            seen = None if target.same is None else target.same(ready, result)
        return Outcome(ACCEPTED), seen
    except GradwireError as error:
        if len(str(error)) < LEAST_TEXT:
            return _found(error, "says little"), None
        return Outcome(REFUSED, type(error).__name__, "", str(error)), None
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return Outcome(NO_MEMORY), None
        return _found(error, f"bare {type(error).__name__}"), None


def _found(error: BaseException, what: str) -> Outcome:
    text = "".join(traceback.format_exception(error))
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(_SOURCE)]
    where = f"{ours[-1].filename.removeprefix(_SOURCE)}:{ours[-1].lineno}" if ours else ""
    return Outcome(FOUND, what, where, text)


def alike(one: object, other: object) -> bool:
    """Whether the two have the same bits; any NaN equals any other."""
    if type(one) in (int, float, str):  # the most frequent case
        return one == other or (one != one and other != other)
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if not is_whole(one):
            return True
        if one.is_complex():
            one, other = torch.view_as_real(one), torch.view_as_real(other)
        if one.is_floating_point():
            one, other = one.detach(), other.detach()
            signs = one.signbit() == other.signbit()
            return bool(((one == other) & signs | one.isnan() & other.isnan()).all())
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")  # type: ignore[arg-type]
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(alike, one, other))  # type: ignore
    return one == other
