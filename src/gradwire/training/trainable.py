"""What of a module trains when it is attached, and what did not: that is averaged by nobody."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.errors import UsageError
from gradwire.training.attached import is_attached


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """What is averaged: of DDP, by the wrapped module's own names, what it reduces."""
    own, ignored = unwrapped(module), set[str]()
    if own is not module:
        ignored.update(getattr(own, "_ddp_params_and_buffers_to_ignore", ()))
    named = own.named_parameters()
    return {name: p for name, p in named if p.requires_grad and name not in ignored}


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, or torch.compile within it; or the module
    itself."""
    own: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
    plain: nn.Module = getattr(own, "_orig_mod", own)
    return plain


def held(optimizer: Optimizer) -> set[int]:
    """Which parameters it steps, by id."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


class Frozen:
    """Parameters of an attached module that each rank would step its own way: those that do not
    train now, and those that will have taken the place of one that does. Weakly held."""

    def __init__(self, module: nn.Module) -> None:
        self._names: Any = WeakIdKeyDictionary()
        own, self._attached = unwrapped(module), set[str]()
        self._module, self._known = weakref.ref(own), weakref.WeakSet[Optimizer]()
        for name, p in own.named_parameters():
            if not p.requires_grad:
                self._names[p] = name
            elif is_attached(p):
                self._attached.add(name)

    def refuse(self, optimizer: Optimizer) -> None:
        """UsageError if it is about to step one of them."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._refuse_replaced(optimizer)
        if not self._names:
            return
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p in self._names and not is_attached(p):
                    raise UsageError(
                        "what is averaged is what trains when a model is attached; "
                        f"'{self._names[p]}' was frozen then, and has a gradient now. Unfreeze "
                        "it before, or attach the module that holds it by itself, too."
                    )

    def _refuse_replaced(self, optimizer: Optimizer) -> None:
        module, stepped = self._module(), held(optimizer)
        for name, p in module.named_parameters() if module is not None else ():
            if name in self._attached and not is_attached(p) and id(p) in stepped:
                raise UsageError(
                    f"what is averaged are the parameters that were attached; '{name}' is another "
                    "one now, as load_state_dict(assign=True) makes it. Attach after that."
                )
