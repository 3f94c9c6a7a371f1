"""Source ports: each piece's socket or queue pair binds to one, so that the network's hash gives
the piece its path.

# flow from to bytes port
0 0 4 8388608 61017
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gradwire.document import Document
from gradwire.errors import NetworkError
from gradwire.network.routes import Piece, Routes
from gradwire.schema import List, Made, Map, Text, Whole, broken
from gradwire_formats import lines

Ports = Mapping[tuple[int, int], Mapping[int, Sequence[int]]]
"""For each pair of hosts, source ports by the path that the network's hash gives them."""
_WHAT = "port"


def ports(routes: Routes, file: str) -> str:
    """Returns the text that `write` makes. file: as for `load`. Raises NetworkError as `write`
    does."""
    return write(routes, load(file))


def load(file: str) -> Ports:
    """Reads a JSON document, {"0,4": {"2": [61000, …], …}, …}: source ports by pair and path, as a
    probe found them. Raises NetworkError if it is invalid."""
    found: Ports = _DOCUMENT.load(file)
    return found


def write(routes: Routes, ports: Ports) -> str:
    """Returns a line for each piece. Pieces of a pair in one step have different ports. Raises
    NetworkError as `lines.write` does, and if too few ports are known for a path."""
    src, dst, step = (
        column.tolist() for column in (routes.flows.src, routes.flows.dst, routes.flows.step)
    )
    used = Counter[tuple[int, int, int, int]]()

    def word(piece: Piece) -> str:
        pair = src[piece.flow], dst[piece.flow]
        key = (*pair, piece.path, step[piece.flow])
        used[key] += 1
        return str(taken(ports, pair, piece.path, used[key])[-1])

    return lines.write(routes, _WHAT, word)


def taken(ports: Ports, pair: tuple[int, int], path: int, many: int) -> list[int]:
    """Returns `many` of the path's ports; raises NetworkError if fewer are known."""
    known = list(ports.get(pair, {}).get(path, ()))
    if len(known) < many:
        raise NetworkError(
            f"a port is known for every path that is used; {pair[0]} to {pair[1]} needs {many} of "
            f"path {path}, and {len(known)} are known. Probe more ports."
        )
    return known[:many]


def _pair(text: str) -> tuple[int, ...]:
    source, _, target = text.partition(",")
    return _number(source), _number(target)


def _number(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 9:
        raise broken("is a whole number", text)
    return int(text)


def _once(by_path: Mapping[int, Sequence[int]]) -> Mapping[int, Sequence[int]]:
    """Returns a pair's ports; refuses those that are listed twice, as each takes one path."""
    many = Counter(port for own in by_path.values() for port in own)
    twice = next((port for port, count in many.items() if count > 1), None)
    if twice is not None:
        raise broken("must list each port of a pair once, as it takes one path", twice)
    return by_path


_OF_PAIR = Made(Map(List(Whole(0, 65_535)), key=Made(Text(), _number)), _once)
_DOCUMENT = Document(
    "a document of ports",
    Map(_OF_PAIR, key=Made(Text(), _pair)),
    NetworkError, """Write pairs of hosts, paths and ports, {'0,4': {'2': [61000]}}""",
)  # fmt: skip
