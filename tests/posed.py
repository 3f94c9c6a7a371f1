"""A CUDA device that does not exist: tensors in the host's memory that pose as its own.

    with posing() as scene:  # posing.py; calls of `torch.cuda` are noted (noted_cuda.py)
        x = torch.zeros(8, device="cuda:1")
        y = x + 1            # computed by the processor; on "cuda:1", says y.device
        y.tolist()           # the host waits: noted, if gradwire does it

The tensors have numbers, so whole jobs run, with every branch that depends on these, and end as
they do on processors unless something is wrong. torch's own fake tensors know shapes alone: no
header of theirs can be read when a step ends, nor can they be kept in the host's memory.

Tensors of several devices in one operation raise `WrongDevice`. `Scene.found` notes, with the
function that did it: what the host reads or waits for, copies from and to memory that is not
pinned, pinned memory that is written while it goes up, streams that use what another one may not
have written yet, and memory that is freed while another stream may still use it. What comes down
without a wait is garbage until the host has waited for the stream.

Autograd of such tensors cannot be shown, as a build of torch without CUDA has no guard for its
devices; so `on_device` passes on gradients that a model on processors has computed. Streams have
an order, but no time of their own.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from noted_cuda import Cuda, Memory, Point, Stream

CPU, DENSE = torch.device("cpu"), torch.contiguous_format
READING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select",
           "bincount", "unique_dim", "unique_consecutive"}  # fmt: skip
"""Operations that give the host a value, or a size that depends on values."""
READ_BY = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__")


class WrongDevice(AssertionError):
    """Tensors of several devices in one operation."""


class Posed(Tensor):
    """A tensor that poses as a device's. behind: its numbers, in the host's memory."""

    behind: Tensor
    scene: Scene
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, behind: Tensor, device: torch.device, scene: Scene) -> Posed:
        made: Posed = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, behind.size(), strides=behind.stride(), storage_offset=behind.storage_offset(),
            dtype=behind.dtype, layout=behind.layout, device=device,
        )  # fmt: skip
        made.behind, made.scene = behind, scene
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        scene = next(x.scene for x in tree_leaves((args, kwargs)) if isinstance(x, Posed))
        return scene.perform(function, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.behind!r} as of {self.device}"

    def data_ptr(self) -> int:
        return self.behind.data_ptr()

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        memory_of(self.behind).recorded.add(stream)

    # torch does these in C++, under a guard of the device, which this build lacks.

    def __invert__(self) -> Tensor:
        return torch.bitwise_not(self)

    def nonzero(self) -> Posed:  # type: ignore[override]
        self.scene.reads("nonzero")
        self.scene.uses(self)
        return self.scene.posed(self.behind.nonzero(), self.device)

    def contiguous(self, *_: Any, **__: Any) -> Tensor:
        return self if self.is_contiguous() else torch.clone(self, memory_format=DENSE)

    def __getitem__(self, index: Any) -> Posed:
        if _is_mask(index):
            self.scene.reads("a mask")
        if any(isinstance(x, Tensor) and not isinstance(x, Posed) for x in tree_leaves(index)):
            self.scene.reads("places of the host's, which go up")
        self.scene.uses(self)
        return self.scene.posed(self.behind[behind(index)], self.device)

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_several([self, *(x for x in tree_leaves(value) if isinstance(x, Tensor))])
        self.scene.uses(self, writes=True)
        self.behind[behind(index)] = behind(value)

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Posed:
        self.scene.copy(self, source, non_blocking)
        torch.autograd.graph.increment_version(self)
        return self


def _reading(name: str) -> Callable[[Posed], Any]:
    def read(self: Posed) -> Any:
        self.scene.reads(name)
        self.scene.uses(self)
        self.scene.cuda.current_stream(self.device).arrive()
        return getattr(self.behind, name)()

    return read


for _name in READ_BY:
    setattr(Posed, _name, _reading(_name))


def behind(given: Any) -> Any:
    """Replaces each posed tensor by the one behind it, in the host's memory."""
    return tree_map_only(Posed, lambda x: x.behind, given)


def _is_mask(index: Any) -> bool:
    """Whether a mask chooses the elements: how many, only the device knows."""
    places = [x for x in tree_leaves(index) if isinstance(x, Tensor)]
    return any(x.dtype in (torch.bool, torch.uint8) for x in places)


def refuse_several(tensors: Iterable[Tensor]) -> None:
    """Raises WrongDevice unless all are on one device; a host's 0-dim tensor goes with any."""
    devices = {x.device for x in tensors if x.dim() or isinstance(x, Posed)}
    if len(devices) > 1:
        raise WrongDevice(f"tensors on {', '.join(sorted(map(str, devices)))} at once")


def memory_of(x: Tensor) -> Memory:
    """The record of memory of a tensor that is behind a posed one."""
    found: Memory = x.untyped_storage().memory  # type: ignore[attr-defined]
    return found


def is_pinned(x: Tensor) -> bool:
    return hasattr(x.untyped_storage(), "pinned")


class Scene(TorchDispatchMode):
    """Performs and notes what is requested of the devices; each thread that uses them enters it.
    carries: whether the network takes a device's tensors. watches: whether waits are noted."""

    def __init__(self, carries: bool) -> None:
        super().__init__()
        self.cuda, self.carries, self.watches = Cuda(told=self.reads), carries, False
        self.found = set[str]()
        self._given_back = defaultdict[Stream, list[Point]](list)
        self._going_up, self._lock = list[tuple[Point, Tensor, Tensor]](), threading.Lock()
        self._lifts = list[bool]()

    def __enter__(self) -> Scene:
        self._lifts.append(torch._C._only_lift_cpu_tensors())  # what `torch.tensor` does goes here
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifts.pop())

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.perform(function, args, kwargs or {})

    # -- what is noted ---------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notes, inside the context, what the host reads and waits for."""
        self.watches = True
        yield
        self.watches = False

    def reads(self, what: str) -> None:
        """Notes that the host waits for the device, if that is watched."""
        if self.watches:
            self._note(what, "")

    def _note(self, what: str, nobody: str) -> None:
        """Notes which function above the kernels did what; nobody: what to note if none did."""
        for frame, _ in traceback.walk_stack(None):
            *_, path = frame.f_code.co_filename.partition("/src/gradwire/")
            if path and not path.startswith("kernels/"):
                self.found.add(f"{path} {frame.f_code.co_name}: {what}")
                return
        if nobody:
            self.found.add(f"{nobody}: {what}")

    def uses(self, x: Posed, writes: bool = False) -> None:
        """Notes a use of x in the calling thread's stream."""
        stream = self.cuda.current_stream(x.device)
        for point in self._given_back.pop(stream, ()):
            if not stream.knows(point):
                self._note(f"memory that {point[0].name} uses is {stream.name}'s again", "a test")
        for late in memory_of(x.behind).used(stream, writes):
            self._note(f"{stream.name} does not wait for {late.name}", "a test")

    @contextmanager
    def at_work(self, given: Sequence[Tensor]) -> Iterator[None]:
        """Notes what a kernel uses: tensors that have other bits afterwards were written."""
        before = [behind(x).clone() for x in given]
        yield
        for x, was in zip(given, before):
            self.uses(x, writes=not _same_bits(behind(x), was))  # type: ignore[arg-type]

    # -- tensors -----------------------------------------------------------------------------

    def posed(self, x: Tensor, device: torch.device) -> Posed:
        """x, posing as a device's. New memory belongs to the current stream."""
        storage: Any = x.untyped_storage()
        if not hasattr(storage, "memory"):
            storage.memory = Memory(self.cuda.current_stream(device))
            weakref.finalize(storage, self._take_back, storage.memory).atexit = False
        return Posed(x, device, self)

    def here(self) -> Posed:
        """A tensor on the current device."""
        return self.posed(torch.zeros(1), self.cuda.at("cuda"))

    def _take_back(self, memory: Memory) -> None:
        self._given_back[memory.home] += memory.last_uses()

    def like(self, found: Any, given: list[Posed], device: torch.device) -> Any:
        """Poses what an operation returned: its arguments as they were, others as new tensors."""
        known = {id(x.behind): x for x in given}
        return tree_map_only(
            Tensor, lambda x: known[id(x)] if id(x) in known else self.posed(x, device), found
        )

    # -- operations --------------------------------------------------------------------------

    def perform(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Performs an operation of torch's."""
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        posed = [x for x in given if isinstance(x, Posed)]
        device = self._asked(kwargs) or (posed[0].device if posed else CPU)
        if kwargs.get("pin_memory") and device == CPU and not posed:
            return _pinned(function(*args, **{**kwargs, "pin_memory": False}))
        if not posed and device == CPU:
            return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if name == "copy_":
            return self.copy(args[0], args[1], *args[2:], **kwargs)
        if name == "_to_copy":
            return self._copied(function, args[0], device, kwargs)
        refuse_several(given)
        if name in READING or (name.startswith("index") and _is_mask(args[1:])):
            self.reads(name)
        if function.namespace == "c10d" and not self.carries:
            self.reads(f"{name} of what the network does not carry")
        kwargs = {**kwargs, "device": CPU} if "device" in kwargs else kwargs
        found = function(*behind(args), **behind(kwargs))
        self._note_uses(function, args)
        return self.like(found, posed, device)

    def _asked(self, kwargs: Any) -> torch.device | None:
        asked = kwargs.get("device")
        if asked is None or torch.device(asked).type != "cuda":
            return asked if asked is None else torch.device(asked)
        return self.cuda.at(asked)

    def _note_uses(self, function: Any, args: Any) -> None:
        for argument, given in zip(function._schema.arguments, args):
            writes = bool(argument.alias_info and argument.alias_info.is_write)
            for x in tree_leaves(given):
                if isinstance(x, Posed):
                    self.uses(x, writes)

    # -- copies ------------------------------------------------------------------------------

    def _copied(self, function: Any, source: Tensor, device: torch.device, kwargs: Any) -> Tensor:
        """A new tensor on the device, of the requested dtype."""
        kept = ("device", "non_blocking", "pin_memory")
        how = {name: value for name, value in kwargs.items() if name not in kept}
        made: Tensor = function(behind(source), **how)
        if isinstance(source, Posed):
            self.uses(source)
        if source.device == device:
            return self.posed(made, device)
        room = torch.empty_like(made)
        room = _pinned(room) if kwargs.get("pin_memory") else room
        if source.dtype == made.dtype:
            made = source
        elif isinstance(source, Posed):  # what changes its type does so before it travels
            made = self.posed(made, source.device)
        to = self.posed(room, device) if device != CPU else room
        return self.copy(to, made, kwargs.get("non_blocking", False))

    def copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Copies within a device, up to it, or down from it."""
        if isinstance(to, Posed) and isinstance(source, Posed):
            refuse_several([to, source])
            self.uses(source)
            self.uses(to, writes=True)
            to.behind.copy_(source.behind)
        elif isinstance(to, Posed):
            self._up(to, source, non_blocking)
        else:
            assert isinstance(source, Posed)
            self._down(to, source, non_blocking)
        return to

    def _up(self, to: Posed, source: Tensor, non_blocking: bool) -> None:
        self.uses(to, writes=True)
        to.behind.copy_(source)
        stream = self.cuda.current_stream(to.device)
        if self._is_quick(source, non_blocking, "up from"):
            with self._lock:
                self._going_up.append((stream.works(), source.detach(), source.clone()))
            stream.later.append(lambda: self._have_come_up(stream))
        else:
            stream.arrive()
            memory_of(to.behind).is_written()

    def _have_come_up(self, stream: Stream, into: Tensor | None = None) -> None:
        """Checks copies that are done before the stream's next work: nothing may have written
        their source meanwhile. into: only copies from that memory."""
        with self._lock:
            over = [
                going for going in self._going_up
                if stream.knows(going[0]) and (into is None or _share(into, going[1]))
            ]  # fmt: skip
            self._going_up = [g for g in self._going_up if not any(g is one for one in over)]
        if not all(_same_bits(source, was) for _, source, was in over):
            self._note("memory that the host writes on its way up", "a test")

    def _down(self, to: Tensor, source: Posed, non_blocking: bool) -> None:
        self.uses(source)
        stream, numbers = self.cuda.current_stream(source.device), source.behind.clone()
        if not self._is_quick(to, non_blocking, "down to"):
            stream.arrive()
            to.copy_(numbers)
            return
        self._have_come_up(stream, to)  # what is left has not, and will have been written
        to.view(-1).view(torch.uint8).fill_(0xAB)
        stream.later.append(lambda: to.copy_(numbers))

    def _is_quick(self, on_host: Tensor, non_blocking: bool, way: str) -> bool:
        """Whether the host need not wait for a copy. A wait is noted."""
        if not is_pinned(on_host):
            self.reads(f"a copy {way} memory that is not pinned")
        elif not non_blocking:
            self.reads(f"a copy {way} pinned memory that blocks")
        return is_pinned(on_host) and non_blocking


def _pinned(x: Tensor) -> Tensor:
    storage: Any = x.untyped_storage()
    storage.pinned = True
    return x


def _share(x: Tensor, y: Tensor) -> bool:
    """Whether the two share a storage."""
    return x.untyped_storage() is y.untyped_storage()


def _same_bits(x: Tensor, y: Tensor) -> bool:
    one, other = (z.contiguous().view(-1).view(torch.uint8) for z in (x, y))
    return torch.equal(one, other)
