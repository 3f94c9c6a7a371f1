"""The checks that passed in the step before, which need not run again for the same tensors."""

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

from torch import Tensor


class Known:
    """The checks that the calls of one bucket have passed, step after step.

    Tensors are known if they are the same objects that last passed the check of that name, with
    equal facts, and their memory and dtype have not changed. They are kept alive until others
    pass; so gradients, which are freed between steps, are not among them.
    """

    def __init__(self) -> None:
        self._passed: dict[str, tuple[tuple[Any, object], tuple[Tensor | None, ...]]] = {}
        self._segments: dict[str, tuple[object, ...]] = {}

    def check(
        self, name: str, facts: object, tensors: Sequence[Tensor | None], check: Callable[[], Any]
    ) -> None:
        """Calls the check, unless all of these are known."""
        passed, others = self._passed.get(name, ((), ()))
        is_same = _are(others, tensors)
        if not is_same or passed != (facts, _memory_of(others)):
            check()
            self._passed[name] = (facts, _memory_of(tensors)), tuple(tensors)

    def check_segments(
        self, name: str, segments: Sequence[Any],
        told: Callable[[], tuple[object, Sequence[Tensor | None]]], check: Callable[[], Any],
    ) -> None:  # fmt: skip
        """Runs `check` with the facts and tensors that `told` returns, or the last ones if the
        same segments, which are kept alive, passed last. For segments whose lists cannot change.
        """
        if _are(self._segments.get(name, ()), segments) and name in self._passed:
            (facts, _), tensors = self._passed[name]
            self.check(name, facts, tensors, check)
        else:
            self.check(name, *told(), check)
        self._segments[name] = tuple(segments)


def _are(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether both hold the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


_FACTS: tuple[Callable[[Tensor], object], ...] = (
    Tensor.data_ptr, attrgetter("nbytes"), attrgetter("dtype"), Tensor.is_contiguous,
)  # fmt: skip


def _memory_of(tensors: Sequence[Tensor | None]) -> tuple[list[object], ...]:
    """Returns the address, the size in bytes and the dtype of each tensor, all of which have
    passed, and whether it is contiguous: four lists, each of which one `map` makes."""
    there = [x for x in tensors if x is not None]
    return tuple(list(map(fact, there)) for fact in _FACTS)
