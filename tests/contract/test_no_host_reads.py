"""Nothing above the kernels asks a device for a value until the step ends.

On a GPU each such read stops the host until all earlier work is done. Here the room works outside
of the watch: what is proven is the protocol, the encoders, the context and the headers, whatever
the kernels of a device do.
"""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any, ClassVar

import instances
import numpy as np
import pytest
import torch
from inputs import normal
from instances import strategies
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.collectives import AllGatherSum
from gradwire.compressors import Identity
from gradwire.feedback._measured import Measured
from gradwire.kernels import formats, is_finite, rooms, status
from gradwire.kernels.formats import Format
from gradwire.local import NOISE
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.runtime.verdict import settle
from gradwire.strategy import Key, Sections, StepInfo
from gradwire.trace import Trace
from interpreter import quicken
from suites import first

READS = {
    "item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "is_nonzero", "equal", "allclose",
    "unique", "bincount", "masked_select", "__bool__", "__int__", "__float__", "__index__",
    "__contains__", "__array__", "__complex__", "__format__", "__repr__",
}  # fmt: skip
"""Functions of torch that give the host a value, or a size that depends on values."""
READING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select",
           "bincount", "unique_dim", "unique_consecutive"}  # fmt: skip
"""The same functions as operations, for calls from within torch."""
HINT = "where to begin the next selection: a number that a room gives back"
LISTS = "whether a payload can be read: the rooms of today say at once which one cannot"
OWN = "whether what was written here is a list: processors say so at once, a device never"
ASCEND = "whether places ascend: the CPU's room says at once whose do not"
NUMBER = "a number of the state, which lives on the host"
MAY_READ = {
    "compressors/topk.py encode: topk": HINT,
    "runtime/codec.py _encode: update_topk": HINT,
    "runtime/encoder.py _advance: update_topk": HINT,
    "runtime/shards.py _encode_means: update_topk": HINT,
    "compressors/_entries.py write: write_entries": ASCEND,
    "compressors/topk.py encode: write_entries": ASCEND,
    "runtime/codec.py _encode: write_entries": ASCEND,
    "runtime/shards.py _encode_means: write_entries": ASCEND,
    "runtime/codec.py _undo: undo_topk": ASCEND,
    "runtime/encoder.py undoing: undo_topk": ASCEND,
    "compressors/topk.py add: add_coded": OWN,
    "runtime/sums.py sum_all: accumulate_coded": LISTS,
    "compressors/_added_up.py accumulate: accumulate_coded": LISTS,
    "compressors/_added_up.py accumulate: accumulate_codes": LISTS,
    "feedback/_adam_encoder.py step_of: __int__": NUMBER,
    "feedback/_adam_encoder.py step_of: _local_scalar_dense": NUMBER,
    "feedback/_measured.py noise_factor: __float__": NUMBER,
    "feedback/_measured.py noise_factor: _local_scalar_dense": NUMBER,
    "runtime/sums.py sum_all: accumulate_codes": LISTS,
    "feedback/_measured.py _are_the_average_s: __bool__": NUMBER,
    "feedback/_measured.py _are_the_average_s: _local_scalar_dense": NUMBER,
    "feedback/_measured.py opening: cpu": "in every tenth step: the noise of the ranks' batches",
    "feedback/_measured.py opening: is_finite": NUMBER,
    "runtime/encoder.py _look: largest": "in every 64th step: what is large, for journals",
}
"""What may be read above the kernels, as "file function: what", and why."""
SHOWN_BY = (
    "topk(0.1) | allgather", "topk(0.1)+ef | alltoall", "topk(0.1)+ef21 | alltoall",
    "topk(0.1)+shared_momentum | allgather",
    'topk(0.1, values="bf16")+ef | allgather',
    "randk(0.1)+ef | allreduce", "randk(0.1)+dgc | allgather", "int8+dgc | allgather",
    "sign(scaled=True)+dgc | allgather", "none+adam | allreduce", "none+ef21 | allreduce",
    "int8+ef | hierarchical", 'none | steps("compress@gpu, all_gather, decompress@gpu")',
)  # fmt: skip
"""Strategies that together make all of these reads."""


ABOVE = re.compile(r".*/gradwire/(?!kernels/)")
"""Files above the kernels; tests are not."""
ANYWHERE, NOBODY = re.compile(r".*/gradwire/"), re.compile(r"/torch/|test_no_host_reads")


class Watch:
    """Records what is read on the host, and where; it is off while a room works.

    own: whether the room runs in Triton's interpreter, which reads all the time; then only what
    gradwire's own functions read is recorded, the room's included.
    """

    def __init__(self, own: bool = False) -> None:
        self.found: set[str] = set()
        self.own, self.rests = own, 0

    def note(self, what: str) -> None:
        if self.rests:
            return
        stack = (f.f_code for f, _ in traceback.walk_stack(None))  # the innermost first
        codes = (code for code in stack if not NOBODY.search(code.co_filename))
        asking = next(codes)
        if self.own and "/gradwire/" not in asking.co_filename:
            return
        of = ANYWHERE if self.own else ABOVE
        who = next(code for code in chain([asking], codes) if of.search(code.co_filename))
        self.found.add(f"{ANYWHERE.split(who.co_filename)[-1]} {who.co_name}: {what}")

    @contextmanager
    def rest(self) -> Iterator[None]:
        self.rests += 1
        yield
        self.rests -= 1


class Asks(TorchFunctionMode):
    """Records reads, as a dispatch mode does not see all: on the CPU, tolist reads by itself."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in READS:
            self.watch.note(function.__name__)
        return function(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name in READING or (name.startswith("index") and _by_mask(args)):
            self.watch.note(name)
        return function(*args, **(kwargs or {}))


def _by_mask(args: tuple[Any, ...]) -> bool:
    """Whether a mask chooses the elements: how many, only the device knows."""
    places = [x for arg in args if isinstance(arg, list | tuple) for x in arg]
    return any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in places)


class Outside:
    """A room whose operations are not watched."""

    def __init__(self, room: Any, watch: Watch) -> None:
        self._room, self._watch = room, watch

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._room, name)

        @wraps(operation)
        def unwatched(*given: Any, **named: Any) -> Any:
            with self._watch.rest():
                result = operation(*given, **named)
            if isinstance(result, int | float | tuple | list):
                self._watch.note(name)
            return result

        return unwatched


def reads(strategy: Strategy, monkeypatch: pytest.MonkeyPatch, room: Any = None) -> set[str]:
    """Returns what is read until the step ends, in ordinary steps and a spoiled one. room: by
    default the CPU's, which looks at a word where there is one."""
    watch, constants = Watch(room is not None), [form.most_scale for form in FORMATS]
    assert constants, "found once, before anything is watched"
    monkeypatch.setitem(rooms.ROOMS, "cpu", room or Outside(rooms.ROOMS["cpu"], watch))
    if room is None:
        monkeypatch.setattr(status, "is_raised", _seen_by_nobody(status.is_raised, watch))
    bucket = Bucket((Parameter("a", (12, 50)), Parameter("b", (70,))))
    world = 4 if room is None else 2  # launches are the same, and take long in the interpreter
    contexts = [make_context(strategy, bucket, rank, world, {}) for rank in range(world)]
    for context in contexts:
        for ask in ("entries", "tell"):
            monkeypatch.setattr(context.streams, ask, _are_counted)
    for step in range(3):
        for context in contexts:
            given = [normal(n, 7 * step + n + context.rank) for n in bucket.sizes]
            if step == 2 and context.rank == 1:
                given[1][3] = torch.nan
            context.begin(given, [x.clone() for x in given], StepInfo(step, 0.5 if step else 1.0))
        rounds = [context.rounds() for context in contexts]
        with Asks(watch), Operations(watch):
            drive(rounds, Trace(world))
        with watch.rest():
            _end(contexts, finite=step < 2)
    return watch.found


@pytest.mark.parametrize(
    "text",
    ["none+server_momentum | allreduce", "none+server_adam | allgather", "int8+ef21 | allgather",
     "none | allgather", "topk(0.1)+ef | allgather", "powersgd(2)", "int8+ef | hierarchical"],
)  # fmt: skip
def test_when_a_step_ends_it_is_read_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read includes what became of averages on which the feedback has the last word."""
    watch = Watch()
    monkeypatch.setitem(rooms.ROOMS, "cpu", Outside(rooms.ROOMS["cpu"], watch))
    bucket = Bucket((Parameter("a", (12, 50)), Parameter("b", (70,))))
    contexts = [make_context(Strategy.parse(text), bucket, rank, 2, {}) for rank in range(2)]
    for step in range(2):
        for context in contexts:
            given = [normal(n, 7 * step + n + context.rank) for n in bucket.sizes]
            context.begin(given, [x.clone() for x in given], StepInfo(step))
        drive([context.rounds() for context in contexts], Trace(2))
        settle([context.codec.verdict for context in contexts])
        watch.found.clear()
        with Asks(watch), Operations(watch):
            for context in contexts:
                context.end(skipped=not context.finite)
        assert {line for line in watch.found if "step_of" not in line} == set(), NUMBER


def _end(contexts: Sequence[BucketContext], finite: bool) -> None:
    for context in contexts:
        assert context.finite == finite
        if isinstance(context.strategy.feedback, Measured):
            for state in context.codec.states:
                state[NOISE] = torch.tensor([1.0, 1.0, 1.5])
        context.end(skipped=False)


def _seen_by_nobody(look: Callable[[Tensor], bool], watch: Watch) -> Callable[[Tensor], bool]:
    """Returns `look` without the watch: what `run_unless` does is the room's business."""

    def unwatched(status: Tensor) -> bool:
        with watch.rest():
            return look(status)

    return unwatched


def _are_counted(*numbers: int, **more: Any) -> None:
    pytest.skip("sparse streams have sizes, which the host knows")


FORMATS = [form for form in vars(formats).values() if isinstance(form, Format)]
FIXED = [s for s in strategies() if all(s.compressor.claims(n).fixed for n in (1, 100))]


@pytest.mark.once
@pytest.mark.parametrize("strategy", FIXED, ids=instances.ids)
def test_nothing_is_read_until_the_step_ends(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reads(strategy, monkeypatch)
    assert not found - set(MAY_READ)


@pytest.mark.parametrize(
    "text",
    first([
        "bf16 | allgather", 'topk(0.1, index="int32")+ef | allgather',
        'dgc(0.1, values="bf16") | allgather', "lloyd(2)+ef | allgather",
        "topk(0.1)+ef21 | alltoall", "topk(0.1)+shared_momentum | alltoall",
        "terngrad(clip=2.5)+ef | alltoall", "sign(scaled=True)+dgc | allgather",
        'int8+ef | steps("compress@gpu, all_to_all, decompress@gpu, all_gather")',
        "int8+ef | hierarchical", 'none | hierarchical("powersgd(2)")',
        "none | allreduce", "topk(0.1) | allgather", "topk(0.1)+ef | allgather",
        "dgc(0.1) | allgather", "topk(0.1)+ef | alltoall", "dgc(0.1) | alltoall",
        'topk(0.1, index="int32")+momentum | allgather', "topk(0.1) | alltoall",
        "terngrad(clip=2.5) | allgather", "sign(scaled=True)+ef | allgather",
        "qsgd(4) | alltoall", "int8+ef | alltoall",
        'none | steps("compress@gpu, all_gather, decompress@gpu")', "int8+dgc | allgather",
        "powersgd(2)",
    ], 6),
)  # fmt: skip
def test_on_cuda_nothing_is_read_at_all(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read above the kernels, nor by what launches them."""
    pytest.importorskip("triton")
    quicken()
    room = importlib.import_module("gradwire.kernels.cuda")
    with np.errstate(all="ignore"):  # by which the interpreter computes
        found = reads(Strategy.parse(text), monkeypatch, room)
    assert not {line for line in found if "signs.py largest" not in line}, "in every 64th step"


@pytest.mark.parametrize("text", ["threshold(0.5)+ef | allgather", "nonzero | allgather"])
def test_how_much_there_is_is_asked_for_once_a_bucket(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host reads once per bucket how many entries there are, and how long their code is."""
    pytest.importorskip("triton")
    quicken()
    monkeypatch.setitem(rooms.ROOMS, "cpu", importlib.import_module("gradwire.kernels.cuda"))
    for parameters in (1, 4):
        bucket, asked = Bucket(tuple(Parameter(f"{i}", (90,)) for i in range(parameters))), []
        context = make_context(Strategy.parse(text), bucket, 0, 2, {})
        given = [normal(90, i) for i in range(parameters)]
        context.begin(given, given, StepInfo(0))
        watch = Watch(own=True)
        monkeypatch.setattr(watch, "note", asked.append)
        with Asks(watch):
            context.message()
        ours = [what for what in asked if what == "tolist"]
        assert len(ours) == 2


def test_what_may_be_read_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each permitted read still occurs: one that is mended must leave the list."""
    found = set[str]()
    for text in SHOWN_BY:
        with monkeypatch.context() as patched:
            found |= reads(Strategy.parse(text), patched)
    assert found == set(MAY_READ)


@dataclass(frozen=True)
class Asking(Identity):
    """A compressor that reads a value on the host, wrong on purpose."""

    how: str = ""
    name: ClassVar[str] = "asking"

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x, sections, key, status)
        ask: dict[str, Callable[[], object]] = {
            "bool": lambda: bool(status), "item": status.item, "tolist": status.tolist,
            "if": lambda: 1 if status != 0 else 0, "float": lambda: float(x[0]),
            "nonzero": x.nonzero, "mask": lambda: x[x > 0], "is_finite": lambda: is_finite(x),
        }  # fmt: skip
        ask[self.how]()


@pytest.mark.parametrize(
    "how", ["bool", "item", "tolist", "if", "float", "nonzero", "mask", "is_finite"]
)
def test_an_encoder_that_asks_is_caught(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads(Strategy(Asking(how), AllGatherSum()), monkeypatch) - set(MAY_READ)
