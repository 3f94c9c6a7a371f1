"""What was checked in the step before: the same tensors need not be looked at again."""

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

from torch import Tensor


class Known:
    """Of the calls that one bucket makes, step after step.

    Tensors are known where they are the very objects that passed the check of that name last, with
    equal facts, and their memory and dtype are what they were. They are kept alive until others
    pass; so gradients, which come and go, are no part of it.
    """

    def __init__(self) -> None:
        self._passed: dict[str, tuple[tuple[Any, object], tuple[Tensor | None, ...]]] = {}
        self._segments: dict[str, tuple[object, ...]] = {}

    def check(
        self, name: str, facts: object, tensors: Sequence[Tensor | None], check: Callable[[], Any]
    ) -> None:
        """Call the check, unless all of these are known."""
        passed, others = self._passed.get(name, ((), ()))
        is_same = _are(others, tensors)
        if not is_same or passed != (facts, _memory_of(others)):
            check()
            self._passed[name] = (facts, _memory_of(tensors)), tuple(tensors)

    def check_segments(
        self, name: str, segments: Sequence[Any],
        told: Callable[[], tuple[object, Sequence[Tensor | None]]], check: Callable[[], Any],
    ) -> None:  # fmt: skip
        """`check`, with the facts and the tensors that are told, unless these are the very
        segments that passed last: of such in which no list can change. They are kept alive, too.
        """
        if _are(self._segments.get(name, ()), segments) and name in self._passed:
            (facts, _), tensors = self._passed[name]
            self.check(name, facts, tensors, check)
        else:
            self.check(name, *told(), check)
        self._segments[name] = tuple(segments)


def _are(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether these are the very same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


_BYTES, _DTYPE = attrgetter("nbytes"), attrgetter("dtype")


def _memory_of(tensors: Sequence[Tensor | None]) -> tuple[list[object], ...]:
    """Where each has its elements, how many bytes, and what they are; of tensors that passed. In
    three lists, each of which is made at once."""
    there = [x for x in tensors if x is not None]
    return list(map(Tensor.data_ptr, there)), list(map(_BYTES, there)), list(map(_DTYPE, there))
