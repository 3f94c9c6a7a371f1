"""A topology by the text of its builder; what any family of functions makes of a text."""

from __future__ import annotations

from typing import Any

from gradwire.errors import NetworkError
from gradwire.families import TOPOLOGIES, Family
from gradwire.network.fabric import Fabric
from gradwire.notation import Notation, name_of

NOTATION = Notation(
    "topology", "a builder with its numbers", "leaf_spine(4, 4, 4, host_gbps=100)", NetworkError,
    elsewhere={"./contrib/formats": ("infragraph", "ns3")},
)  # fmt: skip


def built(text: str) -> Fabric:
    """Build a topology by its builder."""
    found: Fabric = called(NOTATION, TOPOLOGIES, text)
    return found


def called(notation: Notation, family: Family, text: str, *given: Any) -> Any:
    """What a member returns for what it is given, and the parameters in the text."""
    node = notation.read(text)
    made = notation.member(text, node, family, family.kind, *given)
    if not isinstance(made, family.base):
        name = name_of(node) or ""
        raise NetworkError(
            f"{family.kind} '{name}' of {family.whose(name)} returned "
            f"{type(made).__name__}, and no {family.base.__name__}. Tell its authors, or use "
            "another."
        )
    return made
