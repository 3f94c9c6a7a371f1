"""A module's parameters by name: those that train, stay dense, are Muon's, or are frozen; and the
part of each that a rank keeps.

A parameter that was frozen when the module was attached is not averaged.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.errors import PlanError, UsageError
from gradwire.training.attached import is_attached


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are averaged, by name; for DDP those that its hook reduces, by
    the wrapped module's names: it leaves out what it is told to ignore or averages itself, late.
    """
    ignored = set[str]()
    if isinstance(module, DistributedDataParallel):
        ignored.update(map(own_name, getattr(module, "parameters_to_ignore", ())))
    return {n: p for n, p in named(module) if p.requires_grad and n not in ignored}


def named(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields a module's parameters, by the model's own names."""
    for name, p in unwrapped(module).named_parameters():
        yield own_name(name), p


def own_name(name: str) -> str:
    """Returns a parameter's name without what torch.compile puts into it, where a part of the
    model was compiled by itself."""
    return name.replace("_orig_mod.", "")


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module without DistributedDataParallel, and without torch.compile in it."""
    own: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
    plain: nn.Module = getattr(own, "_orig_mod", own)
    return plain


def held(optimizer: Optimizer) -> set[int]:
    """Returns the ids of the parameters that an optimizer steps."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


# -- sharded parameters --------------------------------------------------------------------------


def sharded_parts(module: nn.Module) -> list[Any]:
    """Returns the modules that fully_shard was applied to, of this one and those in it, without
    importing fully_shard."""
    marks = "set_requires_gradient_sync", "reshard"
    return [part for part in module.modules() if all(hasattr(part, mark) for mark in marks)]


def is_sharded(module: nn.Module) -> bool:
    """Whether fully_shard was applied to the module or to a part of it."""
    return bool(sharded_parts(module))


def resharded(module: nn.Module) -> dict[str, nn.Parameter]:
    """Reshard a module, whose parameters may be whole after a forward pass; returns those that
    train."""
    for part in sharded_parts(module):
        part.reshard()
    return trainable(module)


def is_shard(tensor: object) -> bool:
    """Whether a tensor is a shard, so that other ranks may keep other parts."""
    return hasattr(tensor, "to_local")


def shard_of(tensor: Any) -> Tensor:
    """Returns this rank's part of a sharded tensor, not a copy; a plain tensor as it is."""
    if not is_shard(tensor):  # the fast path, taken for every gradient in every step
        plain: Tensor = tensor
        return plain
    with torch.no_grad():
        shard: Tensor = tensor.to_local()
    return shard


def shards_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, Any]:
    """Returns `shard_of` each parameter, by name."""
    return {name: shard_of(p) for name, p in parameters.items()}


# -- parameters with another strategy ------------------------------------------------------------


def excluded(
    module: nn.Module, names: Iterable[str], exclude: Sequence[str | type[nn.Module]]
) -> list[str]:
    """Returns those of the trainable parameters `names` that an entry of `exclude` selects.

    A text is a parameter's name, in which *, ? and [] match as in file names; a type selects all
    parameters inside modules of it and its subclasses, even if they are shared with other modules.
    Raises PlanError if an entry selects none.
    """
    if isinstance(exclude, str | type) or not isinstance(exclude, Iterable):
        raise PlanError(
            f"exclude must be a list of names and types; got {exclude!r} alone. Put it in "
            "brackets: exclude=[…], or leave it out."
        )
    whole, known, found = unwrapped(module), list(names), list[str]()
    for entry in exclude:
        if isinstance(entry, str):
            hits = [name for name in known if fnmatchcase(name, own_name(entry))]
        else:
            inside = _of_type(whole, entry)
            hits = [name for name in known if name in inside]
        if not hits:
            shown = entry if isinstance(entry, str) else getattr(entry, "__name__", repr(entry))
            raise PlanError(
                "each entry of exclude must be a name of trainable parameters, such as "
                "'embedding.*', or a type of modules that hold some, such as torch.nn.LayerNorm; "
                f"'{shown}' matches none. The names are: {', '.join(known[:8])}"
                f"{' …' if len(known) > 8 else ''}."
            )
        found += hits
    return [name for name in known if name in found]


def _of_type(module: nn.Module, kind: type[nn.Module]) -> list[str]:
    kinds: tuple[type[nn.Module], ...] = (kind,) if isinstance(kind, type) else ()
    inside = {
        id(p) for child in module.modules() if isinstance(child, kinds) for p in child.parameters()
    }
    return [name for name, p in named(module) if id(p) in inside]


def hidden_matrices(module: nn.Module) -> list[str]:
    """Returns the names of the hidden matrices, in order: all trainable parameters of two
    dimensions, except those of embeddings, those of the last `torch.nn.Linear` that is registered,
    which is a model's head, and those shared with either."""
    whole = unwrapped(module)
    linear = [child for child in whole.modules() if isinstance(child, nn.Linear)]
    ends = [
        child for child in whole.modules()
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) or child in linear[-1:]
    ]  # fmt: skip
    outside = {id(p) for end in ends for p in end.parameters()}
    return [
        name for name, p in named(module)
        if p.requires_grad and p.dim() == 2 and id(p) not in outside
    ]  # fmt: skip


def others(module: nn.Module, optimizer: Any = None) -> list[str]:
    """Returns the names of all trainable parameters that are not Muon's: by the optimizer's
    groups, if it is `gradwire.optim.Muon`; else all but the hidden matrices."""
    groups = [g for g in getattr(optimizer, "param_groups", ()) if "muon" in g]
    trained = [(n, p) for n, p in named(module) if p.requires_grad]
    if not groups:
        hidden = set(hidden_matrices(module))
        return [name for name, _ in trained if name not in hidden]
    taken = {id(p) for group in groups if group["muon"] for p in group["params"] if p.dim() == 2}
    return [name for name, p in trained if id(p) not in taken]


# -- frozen parameters ---------------------------------------------------------------------------


class Frozen:
    """Refuses steps of parameters that are not averaged, as ranks would differ: those frozen when
    the module was attached, and those that came later, new or in place of an attached one. It
    holds parameters weakly."""

    def __init__(self, module: nn.Module) -> None:
        self._names: Any = WeakIdKeyDictionary()
        own = unwrapped(module)
        self._module = weakref.ref(own)
        self._known = weakref.WeakKeyDictionary[Optimizer, set[int]]()  # what it held
        self._then = {name for name, _ in named(own)}
        self._alone = set[str]()  # on purpose, as what DDP leaves to others
        for name, p in named(own):
            if not p.requires_grad:
                self._names[p] = name
            elif not is_attached(p):
                self._alone.add(name)

    def refuse(self, optimizer: Optimizer) -> None:
        """Raise UsageError if an optimizer is about to step one of them."""
        stepped = held(optimizer)
        if self._known.get(optimizer) != stepped:
            self._refuse_others(stepped)
            self._known[optimizer] = stepped
        if not self._names:
            return
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p in self._names and not is_attached(p):
                    raise UsageError(
                        "only parameters that train when a model is attached are averaged; "
                        f"'{self._names[p]}' was frozen then, and has a gradient now. Unfreeze it "
                        "before attach, or attach the module that holds it by itself, too."
                    )

    def _refuse_others(self, stepped: Container[int]) -> None:
        module = self._module()
        for name, p in named(module) if module is not None else ():
            if is_attached(p) or id(p) not in stepped or name in self._alone:
                continue
            if not p.requires_grad:
                self._names[p] = name  # refused once it has a gradient
            elif name in self._then and p not in self._names:
                raise UsageError(
                    f"only parameters that were attached are averaged; '{name}' is a new one now, "
                    "such as load_state_dict(assign=True) makes. Attach after that."
                )
            elif name not in self._then:
                raise UsageError(
                    f"only parameters that were attached are averaged; '{name}' was added later, "
                    "such as by a new layer or a parametrization. Attach after adding it, "
                    "or attach the module that holds it by itself, too."
                )


@contextmanager
def training_as_attached(
    module: nn.Module, attached: Mapping[str, nn.Parameter]
) -> Iterator[None]:
    """A context in which those parameters train, and no others, that did when the module was
    attached, so that it can be attached alike: some may be frozen since."""
    own = set(map(id, attached.values()))
    others = [p for p in module.parameters() if p.requires_grad != (id(p) in own)]
    for p in others:
        p.requires_grad_(not p.requires_grad)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(not p.requires_grad)
