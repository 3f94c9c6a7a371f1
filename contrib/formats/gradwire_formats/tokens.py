"""Tokens of a mixture of experts: a line for each rank, with the number that goes to each expert.

    # rank 0 sends 120 tokens to expert 0, 3 to expert 1, …
    120 3 40 0
    7 88 1 64

Experts are divided among ranks in order, equally many to each. Tokens go to their experts in one
step, and come back in the next.
"""

from __future__ import annotations

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.fabric import count
from gradwire.network.flows import Flows
from gradwire.network.importers import read
from gradwire.network.patterns.parts import all_pairs, steps

_MOST = 1 << 40  # tokens of a rank to an expert
_MOST_BYTES = (1 << 63) - 1


def tokens(ranks: int, bytes: int, file: str, token_bytes: int = 8192) -> Flows:
    """Reads a file; `bytes` is ignored. Raises NetworkError if it cannot be read, as `flows` does,
    and for tokens of more ranks than there are."""
    found = flows(read(file), token_bytes)
    last = int(found.dst.max(initial=-1))  # every sender also receives
    if last >= ranks:
        raise NetworkError(
            f"every line is a rank; {file} has tokens of rank {last}, and there are {ranks} "
            "ranks. Use more, or leave out lines."
        )
    return found


def flows(text: str, token_bytes: int) -> Flows:
    """Returns flows between ranks, of unequal sizes. Raises NetworkError, with the line, if the
    text cannot be read, and if the experts cannot be divided equally among ranks."""
    count("token_bytes", token_bytes)
    rows = list[list[int]]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", maxsplit=1)[0].replace(",", " ").split()
        if not words:
            continue
        if not all(word.isdecimal() and int(word) <= _MOST for word in words):
            _fail(number, line, f"tokens are whole numbers from 0 to {_MOST:,}")
        if rows and len(words) != len(rows[0]):
            _fail(number, line, f"every rank has a number for each of {len(rows[0])} experts")
        rows.append([int(word) for word in words])
    ranks, experts = len(rows), len(rows[0]) if rows else 0
    if not rows or experts % ranks:
        raise NetworkError(
            f"experts are shared out equally over ranks, which have a line each; got {ranks} "
            f"lines of {experts} experts. Add the lines, or experts, that are missing."
        )
    tokens = np.array(rows, np.int64).reshape(ranks, ranks, -1).sum(2)
    if int(tokens.max()) * token_bytes > _MOST_BYTES:
        raise NetworkError(
            f"a rank sends another at most {_MOST_BYTES:,} bytes; got {int(tokens.max()):,} "
            f"tokens of {token_bytes:,} bytes. Correct token_bytes."
        )
    source, target = all_pairs(ranks)
    sizes = tokens[source, target] * token_bytes
    return steps([(source, target, sizes), (target, source, sizes)])


def _fail(number: int, line: str, rule: str) -> None:
    raise NetworkError(f"{rule}; line {number} is {line!r}. Correct it.")
