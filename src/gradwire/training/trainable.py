"""What of a module trains when it is attached, and what did not: that is averaged by nobody."""

from __future__ import annotations

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
    """By DistributedDataParallel, or the module itself."""
    own: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
    return own


class Frozen:
    """Parameters of a module that do not train now. Weakly held."""

    def __init__(self, module: nn.Module) -> None:
        self._names: Any = WeakIdKeyDictionary()
        for name, p in unwrapped(module).named_parameters():
            if not p.requires_grad:
                self._names[p] = name

    def refuse(self, optimizer: Optimizer) -> None:
        """UsageError if it is about to step one of them: each rank would go its own way."""
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
