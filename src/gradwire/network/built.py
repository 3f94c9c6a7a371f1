"""Builds topologies, and calls members of any family of functions, by their text."""

from __future__ import annotations

from typing import Any

from gradwire.errors import GradwireError, NetworkError
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
    NetworkError if another package's raises an error that is none of gradwire's, or returns
    something else than the family's type."""
    node = notation.read(text)
    name = name_of(node) or ""
    try:
        made = notation.member(text, node, family, family.kind, *given)
    except GradwireError:
        raise
    except Exception as error:
        if family.whose(name) is None:
            raise
        raise NetworkError(
            f"{family.kind} '{name}' of {family.whose(name)} must return {family.base.__name__}; "
            f"it raised {type(error).__name__}: {error}. Tell its authors, or use another."
        ) from error
    if not isinstance(made, family.base):
        raise NetworkError(
            f"{family.kind} '{name}' of {family.whose(name)} must return {family.base.__name__}; "
            f"it returned {type(made).__name__}. Tell its authors, or use another."
        )
    return made
