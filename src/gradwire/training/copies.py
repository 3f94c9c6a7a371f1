"""Warns when a deep copy of an attached module trains, as its gradients are not averaged.

Copies that never train, as teachers and moving averages, are no mistake. So there is no warning
until a backward() reaches a copy.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.training.attached import is_attached

_PLACE = "_gradwire"
"""The key of the mark in the module's __dict__, which deepcopy copies after the parameters."""


class Mark:
    """Marks an attached module, so that deep copies are known. Pickled copies have no mark."""

    def __init__(self, module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._module = weakref.ref(module)
        self._parameters = [weakref.ref(p) for p in parameters.values()]
        module.__dict__[_PLACE] = self

    def remove(self) -> None:
        """Remove the mark from the module, which is not attached any more."""
        module = self._module()
        if module is not None and module.__dict__.get(_PLACE) is self:
            del module.__dict__[_PLACE]

    def __deepcopy__(self, memo: dict[int, Any]) -> OfCopy:
        return OfCopy(memo[id(p)] for ref in self._parameters if id(p := ref()) in memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


class OfCopy:
    """Marks a deep copy of an attached module, and warns once when it gets a gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [weakref.ref(p) for p in parameters]
        self._hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for ref in self._parameters
            if (p := ref()) is not None and p.requires_grad
        ]

    def _on_gradient(self, parameter: Tensor) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if not is_attached(parameter):
            warnings.warn(
                "a deep copy of an attached module is trained, and gradwire does not average its "
                "gradients: ranks will diverge, unless something else averages them, such as "
                "DistributedDataParallel. Attach the copy, too.",
                stacklevel=2,
            )

    __deepcopy__ = Mark.__deepcopy__
    __reduce__ = Mark.__reduce__


class Attached:
    """What averages a model's gradients. A deep or pickled copy of what holds it, such as a model
    that keeps its handle, is not attached, and holds None there."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Hook:
    """A hook or callback that calls a method, outside what torch.compile traces, such as a whole
    training step; in a deep or pickled copy of its module it does nothing."""

    def __init__(self, method: Callable[..., None]) -> None:
        self._method = method
        _keep_out_of_graphs()

    def __call__(self, *args: object) -> None:
        self._method(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


@cache
def _keep_out_of_graphs() -> None:
    """Has torch.compile leave hooks to Python. Once there is a hook, and not as a decorator:
    torch then imports its compiler, which takes as long as all the rest of it."""
    disable: Any = torch.compiler.disable
    Hook.__call__ = disable(Hook.__call__)  # type: ignore[method-assign]


def _nothing(*_: object) -> None:
    pass
