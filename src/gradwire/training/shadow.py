"""Compares a sample of the weights with where dense training would have taken them.

gradients of all ranks ─► mean, of a sample ─► an optimizer as the real one ─► the dense path
weights, of the sample, as they really moved ───────────────────────────────► the real path
                                                  apart = |real - dense| / |dense|
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from inspect import signature, unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.optim.muon import Muon, is_muon_s
from gradwire.optim.sgd import SGD
from gradwire.training.trainable import is_shard, shard_of

_BY_ELEMENT = (
    SGD, torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.Adamax, torch.optim.RMSprop, torch.optim.Adagrad,
)  # fmt: skip
"""Optimizers that step each element by itself, so that a sample of elements can represent them."""
OTHERWISE = 0.01
"""How much of a change, of the weights or of the gradients, may be of another kind than those that
are followed, as by rounding."""
_KERNELS = "foreach", "fused", "capturable"
"""Options for torch's kernels over many parameters, which a sample does not need."""


def is_by_element(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether the optimizer steps each element of a parameter by itself, from dense gradients."""
    if _class_of(optimizer) is None:
        return False
    if isinstance(optimizer, Muon):
        return not is_muon_s(parameter, dict(group))
    return isinstance(optimizer, _BY_ELEMENT)


def is_by_matrix(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether the optimizer steps a parameter as a matrix, so that all of it must be watched."""
    if _class_of(optimizer) is None:
        return False
    ours = isinstance(optimizer, Muon) and is_muon_s(parameter, dict(group))
    return (ours or isinstance(optimizer, torch.optim.Muon)) and not is_shard(parameter)


def _class_of(optimizer: Optimizer) -> Any:
    """Returns the class to make a copy by: that of the library whose step an optimizer takes, or
    its own, which may have a constructor of another kind; None if that is so."""
    own: Any = type(optimizer)
    libraries = ("torch.optim.", "gradwire.optim.")
    known: Any = next((c for c in own.__mro__ if c.__module__.startswith(libraries)), Optimizer)
    if unwrap(own.step) is unwrap(known.step):
        return known
    try:
        signature(own).bind([], lr=0.0)
    except (TypeError, ValueError):
        return None
    return own


class Shadow:
    """A copy of an optimizer that steps a sample of its parameters' elements.

    places: the sampled places of each watched parameter, by its name, flat, int64. whole: names of
    those that step as matrices, with all their places. Without places it only counts steps, on a
    rank whose optimizer steps nothing that is watched. The copy starts from the optimizer's state.
    """

    def __init__(
        self, optimizer: Optimizer, named: Mapping[str, Tensor], places: Mapping[str, Tensor],
        whole: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._optimizer, self._named, self._places = optimizer, named, places
        self.whole, self.began = whole, self._weights()
        self._own = {
            # One of a single element has its shape, as its state must, among which are counters.
            name: (
                x.clone().view(named[name].shape)
                if name in whole or named[name].numel() == 1
                else x.clone()
            )
            for name, x in self.began.items()
        }
        for own in self._own.values():
            own.requires_grad_()
        groups = [
            {**group, "params": watched, **{k: False for k in _KERNELS if k in group}}
            for group in optimizer.param_groups
            if (watched := [self._own[name] for name in self._names(group)])
        ]
        self.steps = 0
        self.is_followed = True
        """Whether nothing but the optimizer has moved the weights."""
        self._before = self._left = self.began
        self._copy: Optimizer | None = None
        if not groups:
            return
        self._copy = copy = _class_of(optimizer)(groups, lr=groups[0]["lr"])
        for name, own in self._own.items():
            state: Any = optimizer.state.get(named[name])
            if state:
                copy.state[own] = {k: self._sampled(name, v) for k, v in state.items()}

    def look(self) -> None:
        """Look, before a step, whether weights are where the last one left them."""
        now = self._weights()
        elsewhere, own = _apart(now, self._left), _apart(self._left, self._before)
        self.is_followed &= elsewhere <= OTHERWISE * own
        self._before = self._left = now

    def leave(self) -> None:
        """Note where a step has left the weights."""
        self._left = self._weights()

    def take(self, means: Mapping[str, Tensor]) -> None:
        """Take the step that the optimizer is about to take, but with dense gradients. means: the
        sample of these, fp32, by name."""
        self.steps += 1
        if self._copy is None:
            return
        for mine, group in zip(self._copy.param_groups, self._groups()):
            mine |= {k: v for k, v in group.items() if k != "params" and k not in _KERNELS}
        for name, own in self._own.items():
            own.grad = means[name].to(own.dtype).view_as(own)
        self._copy.step()

    def apart(self, names: Iterable[str], waiting: Mapping[str, Tensor] | None = None) -> float:
        """Returns the distance of these parameters' weights from the dense path, over its length.

        waiting: residuals as steps of the weights, which count as taken already.
        """
        real, dense, weights = 0.0, 0.0, self._weights()
        for name in names:
            began = self.began[name].double()
            path = self._own[name].detach().reshape(-1).double() - began
            moved = weights[name].double() - began
            if waiting is not None and name in waiting:
                moved = moved + waiting[name].double()
            real += float((moved - path).square().sum())
            dense += float(path.square().sum())
        return (real / dense) ** 0.5 if dense > 0 else 0.0

    def _weights(self) -> dict[str, Tensor]:
        found = self._places.items()
        return {name: _flat(self._named[name])[at] for name, at in found}

    def _names(self, group: Mapping[str, Any]) -> list[str]:
        ids = {id(p) for p in group["params"]}
        return [name for name in self._places if id(self._named[name]) in ids]

    def _groups(self) -> list[dict[str, Any]]:
        """Returns the optimizer's groups that have watched parameters."""
        return [group for group in self._optimizer.param_groups if self._names(group)]

    def _sampled(self, name: str, value: Any) -> Any:
        """Returns the sample of a value in a parameter's state; a copy of a number or another
        shape."""
        if not isinstance(value, Tensor):
            return value
        if value.shape != self._named[name].shape or value.numel() == 1:
            return shard_of(value).detach().clone()
        return _flat(value)[self._places[name]].view_as(self._own[name])


def _apart(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """Returns the distance of two samples. All parameters are looked at together: hundreds of
    small sums would take longer than the rest of a watched step."""
    if not ones:
        return 0.0
    one = torch.cat([x.double() for x in ones.values()])
    other = torch.cat([others[name].double() for name in ones])
    return math.sqrt(float((one - other).square_().sum()))


def _flat(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor, flat."""
    return shard_of(tensor).detach().reshape(-1)
