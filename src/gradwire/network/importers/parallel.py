"""A parallel job as a TOML file: the fields of `Parallelism`, by their names.

dp = 32
pp = 4
tp = 8
gradient_bytes = 437_500_000
activation_bytes = 8_388_608
microbatches = 16
forward_seconds = 0.012
backward_seconds = 0.024
buckets = 4                   # if not 1
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields

from gradwire.errors import NetworkError
from gradwire.network.parallelism import Parallelism

KNOWN = {field.name: field.default is MISSING for field in fields(Parallelism)}
"""Names, and whether a file must have them."""


def job(text: str) -> Parallelism:
    """NetworkError for what cannot be read, is missing, unknown, or cannot be."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NetworkError(f"a parallel job is TOML; {error}. Correct the line.") from None
    missing = [name for name, is_needed in KNOWN.items() if is_needed and name not in found]
    unknown = [name for name in found if name not in KNOWN]
    if missing or unknown:
        raise NetworkError(
            f"a parallel job is {', '.join(KNOWN)}; missing: {', '.join(missing) or 'none'}, "
            f"unknown: {', '.join(unknown) or 'none'}. Correct the names."
        )
    for name in found:
        if name.endswith("seconds") and not _is_number(found[name]):
            raise NetworkError(
                f"{name} is a number of seconds; got {found[name]!r}. Write 0.01, say."
            )
    return Parallelism(**found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
