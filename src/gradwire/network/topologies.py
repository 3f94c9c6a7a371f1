"""Reads topologies from their text, or from a file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

from gradwire.errors import NetworkError
from gradwire.families import TOPOLOGIES
from gradwire.network.built import NOTATION, built
from gradwire.network.fabric import Fabric
from gradwire.network.importers import htsim, read, toml
from gradwire.notation import name_of

READERS: dict[str, Callable[[str], Fabric]] = {
    ".toml": toml.topology, ".topo": htsim.topology,
}  # fmt: skip
"""The readers of files, by the suffix of the file's name."""


def topology_of(text: str) -> Fabric:
    """Reads a topology: 'leaf_spine(leaves=4, hosts=4, spines=4)', 'fat_tree(…)',
    'rail_optimized(…)' or 'dual_plane(…)', or another package's; or from a file: gradwire's TOML,
    or htsim's .topo. Raises NetworkError if it is none."""
    reader = READERS.get(Path(text).suffix)
    return built(text) if reader is None else reader(read(text))


def latency_ns_of(text: str) -> float | None:
    """Returns the latency of every link, if a file states it. Raises NetworkError if it states
    several."""
    return htsim.latency_ns(read(text)) if Path(text).suffix == ".topo" else None


def varied(text: str, name: str, value: str) -> Fabric:
    """Builds the topology with another value of one parameter. Raises NetworkError for a file, and
    for a parameter that the builder does not have."""
    node = NOTATION.read(text)
    builder = TOPOLOGIES.get(name_of(node) or "")
    known = list(inspect.signature(builder).parameters) if builder else []
    if name not in known:
        raise NetworkError(
            "only a parameter of the builder can be varied "
            f"({', '.join(known) or 'none: a file'}); got {name!r}. Name one of them."
        )
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    place = known.index(name)
    new = NOTATION.read(value)
    if place < len(call.args):
        call.args[place] = new
    else:
        call.keywords = [k for k in call.keywords if k.arg != name] + [ast.keyword(name, new)]
    return built(ast.unparse(call))
