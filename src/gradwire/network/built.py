"""A topology by the text of its builder."""

from __future__ import annotations

from gradwire.errors import NetworkError
from gradwire.families import TOPOLOGIES
from gradwire.network.fabric import Fabric
from gradwire.notation import Notation, name_of

NOTATION = Notation(
    "topology", "a builder with its numbers", "leaf_spine(4, 4, 4, host_gbps=100)", NetworkError,
    elsewhere={"gradwire-formats": ("infragraph", "ns3")},
)  # fmt: skip


def built(text: str) -> Fabric:
    """By a builder."""
    node = NOTATION.read(text)
    made = NOTATION.member(text, node, TOPOLOGIES, "builder")
    if not isinstance(made, Fabric):
        name = name_of(node) or ""
        raise NetworkError(
            f"a builder returns a Fabric; '{name}' of {TOPOLOGIES.whose(name)} "
            f"returned {type(made).__name__}. Tell its authors, or use another."
        )
    return made
