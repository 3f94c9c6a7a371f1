"""Which parameters travel dense because the user says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from gradwire.errors import PlanError
from gradwire.training.trainable import unwrapped


def excluded(
    module: nn.Module, names: Iterable[str], exclude: Sequence[str | type[nn.Module]]
) -> list[str]:
    """Those of the trainable parameters `names` that an entry of `exclude` means.

    A text is a parameter's name, in which *, ? and [] stand for others as in file names; a type
    means all parameters inside modules of it, subclasses too, also if they are shared with
    others. PlanError where an entry means none.
    """
    if isinstance(exclude, str | type):
        raise PlanError(
            f"exclude is a list of names and types; got {exclude!r} alone. Put it in brackets: "
            "exclude=[…]."
        )
    whole, known, found = unwrapped(module), list(names), list[str]()
    for entry in exclude:
        own = _named(known, entry) if isinstance(entry, str) else _of_type(whole, entry)
        hits = [name for name in own if name in known]
        if not hits:
            shown = entry if isinstance(entry, str) else getattr(entry, "__name__", repr(entry))
            raise PlanError(
                "each entry of exclude is the name of trainable parameters (as "
                "'embedding.*'), or a type of modules that hold some (as torch.nn.LayerNorm); "
                f"'{shown}' means none. The names are: {', '.join(known[:8])}"
                f"{' …' if len(known) > 8 else ''}."
            )
        found += hits
    return [name for name in known if name in found]


def _named(names: Iterable[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


def _of_type(module: nn.Module, kind: type[nn.Module]) -> list[str]:
    kinds: tuple[type[nn.Module], ...] = (kind,) if isinstance(kind, type) else ()
    inside = {
        id(p) for child in module.modules() if isinstance(child, kinds) for p in child.parameters()
    }
    return [name for name, p in module.named_parameters() if id(p) in inside]
