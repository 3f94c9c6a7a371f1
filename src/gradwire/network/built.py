"""Builds topologies, and calls members of any family of functions, by their text."""

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
    """Builds a topology by the text of its builder."""
    found: Fabric = called(NOTATION, TOPOLOGIES, text)
    return found


def called(notation: Notation, family: Family, text: str, *given: Any) -> Any:
    """Calls the member that a text names, with `given` and the parameters in the text. Raises
    NetworkError if it returns something else than the family's type."""
    node = notation.read(text)
    made = notation.member(text, node, family, family.kind, *given)
    if not isinstance(made, family.base):
        name = name_of(node) or ""
        raise NetworkError(
            f"{family.kind} '{name}' of {family.whose(name)} must return {family.base.__name__}; "
            f"it returned {type(made).__name__}. Tell its authors, or use another."
        )
    return made
