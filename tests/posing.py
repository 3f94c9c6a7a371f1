"""Makes a device pose as present: `torch.cuda`, the room of its kernels, and models on it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gradwire.kernels import rooms
from gradwire.runtime import conductor, torch_dist
from gradwire.training import attachable, lanes
from posed import Posed, Scene, behind, refuse_several

ANSWERS = {"update_topk", "topk", "write_entries", "fallbacks"}
"""Operations that return without reading a number from the device: see `table.Room`."""
HEEDING = {"accumulate_codes", "accumulate_coded"}
"""Operations that do so if they are given a status."""


def _is_asked(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a number must be read from the device for what an operation returns."""
    heeds = name in HEEDING and isinstance(args[-1], Tensor)
    return name not in ANSWERS and not heeds


class PosedRoom:
    """The kernels of processors, for tensors of one device; sums heed the status word."""

    GOES_ON = True

    def __init__(self, room: Any, scene: Scene) -> None:
        self._room, self._scene = room, scene

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation, scene = getattr(self._room, name), self._scene

        def posed(*args: Any, **kwargs: Any) -> Any:
            given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            assert all(isinstance(x, Posed) for x in given), f"{name} of the host's memory"
            refuse_several(given)
            with scene.at_work(given):
                found = operation(*behind(args), **behind(kwargs))
            if isinstance(found, int | float | tuple | list) and _is_asked(name, args):
                scene.reads(name)
            return scene.like(found, given, given[0].device)

        return posed


def _interpreted(stack: ExitStack, scene: Scene) -> Any:
    """The room of CUDA tensors. Its kernels run in Triton's interpreter, each on the current
    device."""
    from triton.runtime.interpreter import InterpretedFunction

    from gradwire.kernels.cuda.tables import _blocks

    run, turn = InterpretedFunction.run, threading.Lock()  # it serves one thread at a time

    def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        posed = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        refuse_several([*posed, scene.here()])
        with turn, scene.at_work(posed), np.errstate(all="ignore"):  # numpy computes
            return run(kernel, *behind(args), **behind(kwargs))

    stack.enter_context(patch.object(InterpretedFunction, "run", launched))
    _blocks.cache_clear()
    stack.callback(_blocks.cache_clear)  # of this scene
    return importlib.import_module("gradwire.kernels.cuda")


@contextmanager
def posing(carries: bool = True, interpreted: bool = False) -> Iterator[Scene]:
    """Poses "cuda:0", which is current, and "cuda:1". carries: whether the network takes a
    device's tensors, as NCCL does; if not, they pass through the host's memory, as over Gloo.
    interpreted: whether CUDA's own kernels compute, in the interpreter."""
    scene = Scene(carries)
    run, backend_of = conductor._Lane.run, torch_dist.backend_of

    def run_there(lane: conductor._Lane) -> None:
        with scene:
            run(lane)

    def named(group: Any, device: torch.device) -> str:
        return "nccl" if carries and device.type == "cuda" else backend_of(group, device)

    asked = ("Event", "Stream", "stream", "device", "current_stream", "current_device",
             "is_current_stream_capturing")  # fmt: skip
    with ExitStack() as stack:
        for name in asked:
            stack.enter_context(patch.object(torch.cuda, name, getattr(scene.cuda, name)))
        stack.enter_context(patch.object(torch.cuda, "_lazy_init", lambda: None))
        stack.enter_context(patch.object(torch.cuda, "get_device_capability", lambda *_: (8, 0)))
        stack.enter_context(patch.object(conductor._Lane, "run", run_there))
        for module in (torch_dist, lanes, attachable):
            stack.enter_context(patch.object(module, "backend_of", named))
        room = _interpreted(stack, scene) if interpreted else PosedRoom(rooms.ROOMS["cpu"], scene)
        stack.enter_context(patch.dict(rooms.ROOMS, cuda=room))
        stack.enter_context(scene)
        yield scene


def on_device(model: nn.Module, device: torch.device, scene: Scene) -> nn.Module:
    """The model on the device. It shares the given model's parameters, and that one computes, so
    gradients arrive as they do in it."""
    there = deepcopy(model)
    there.forward = model.__call__  # type: ignore[method-assign]
    for own, other in zip(model.modules(), there.modules()):
        for name, p in own._parameters.items():
            if p is not None:
                posed = nn.Parameter(scene.posed(p.detach(), device))
                other._parameters[name] = posed
                p.register_post_accumulate_grad_hook(_passing_on(posed, scene))  # type: ignore
    return there


def _passing_on(posed: nn.Parameter, scene: Scene) -> Callable[[Tensor], None]:
    """Returns a hook that accumulates a gradient that has arrived, as autograd does."""

    def pass_on(p: Tensor) -> None:
        assert p.grad is not None
        own, p.grad = scene.posed(p.grad, posed.device), None
        posed.grad = own if posed.grad is None else posed.grad.add_(own)
        for hook in tuple((posed._post_accumulate_grad_hooks or {}).values()):
            hook(posed)

    return pass_on
