"""Documents damaged in every place: by nasty values, by missing parts, by additional ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]
NASTY = (
    None, True, -1, 0, 0.5, 1 << 31, 1 << 62, 1 << 70, 10**400, -1e300, math.nan, math.inf, "",
    "x", "\ud800", [], [[]], [-1], {}, {"x": 1}, DEEP,
)  # fmt: skip
_MISSING = object()
Place = tuple[Any, ...]


def places(value: object, path: Place = ()) -> Iterator[Place]:
    """Yields paths to every part of a document, itself first; of long lists, only the ends."""
    yield path
    inside: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list | tuple):
        inside = [(i, value[i]) for i in sorted({*range(len(value))[:2], *range(len(value))[-1:]})]
    for key, other in inside:
        yield from places(other, (*path, key))


def damaged(
    document: Any,
    nasty: tuple[Any, ...] = NASTY,
    odd: Callable[[Any], tuple[Any, ...]] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yields a description and a damaged document for each place: with each value, without the
    place, and with something added. odd: more values, made from the one found there. Each is a
    copy, except what torch holds."""
    for place in places(document):
        found = _at(document, place)
        values = (*nasty, *(odd(found) if odd else ()), *((_MISSING,) if place else ()))
        for value in values:
            yield f"{place} = {value!r:.60}", _with(document, place, value)
        if isinstance(found, dict):
            yield f"{place} has more", _with(document, place, {**found, "more": 1})
        if isinstance(found, list):
            yield f"{place} has more", _with(document, place, [*found, *found[-1:], 7])
            yield f"{place} has one twice", _with(document, place, [*found, *found[-1:]])
            yield f"{place} has less", _with(document, place, found[:-1])


def _at(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


def _with(document: Any, place: Place, value: Any) -> Any:
    """Returns the document with another value at a place; all other parts are shared."""
    if not place:
        return value
    key, *rest = place
    own = copy.copy(document) if isinstance(document, dict) else list(document)
    if value is _MISSING and not rest:
        del own[key]
    else:
        own[key] = _with(document[key], tuple(rest), value)
    return own
