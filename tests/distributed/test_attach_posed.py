"""Whole jobs whose models are on a CUDA device, played by the host's memory (`posed`): they end
with the bits of processors, on the right device, in order, and the host does not wait before a
step's end.

Under NCCL's name, tensors of a device travel as they are, by one lane. Over Gloo they go through
pinned memory, by two lanes, and the device is not the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, entry, fingerprint
from torch import Tensor, nn

import gradwire
from gradwire import Handle, Plan, Strategy, kernels
from gradwire.feedback import _orthogonal
from gradwire.runtime import own_view
from gradwire.runtime.device_order import LaneOrder, Made
from gradwire.runtime.verdict import Verdict
from noted_cuda import Stream
from posed import Scene, behind
from posing import on_device, posing
from suites import first

SHOWN_BY = (
    "topk(0.1)+ef | allgather", "dgc(0.1) | alltoall", "randk(0.1)+ef | allreduce",
    "int8+dgc | allgather", "lloyd(2)+adam | alltoall", "powersgd(4)",
    "int8+ef | hierarchical(per_node=2)", "nonzero | allgather", "nonzero | sparse_auto(every=1)",
    "threshold(0.01)+ef | zen", "none | columns", "topk(0.1)+ef21 | sparcml_split",
    'none | steps("compress@gpu, all_gather, decompress@gpu")',
    'int8+ef | steps("compress@gpu, all_to_all, decompress@gpu, compress@cpu, all_gather, '
    'decompress@cpu")',
)  # fmt: skip
"""Strategies that together show every entry of `KNOWN`."""
TEXTS = (
    *SHOWN_BY,
    "bf16 | allreduce", "fp16+ef | allgather", "lloyd(2)+muon | alltoall", "signum(0.9) | vote",
    "int8+shared_momentum(0.9) | allgather", "none+server_adam | allreduce", "dgc(0.1) | gtopk",
    "topk(0.1)+ef | oktopk", "topk(0.1)+ef | dsar", "topk(0.1)+ef | union",
    "topk(0.1)+ef | sparse_ps", "topk(0.1)+ef | offload", "nonzero | omnireduce",
    "int8+ef | hierarchical(per_node=1)",
)  # fmt: skip
OTHERS = (
    "none | allreduce", "int8+ef | alltoall", "fp8+ef | allgather", "qsgd(4)+ef | alltoall",
    "natural | allgather", "terngrad | allgather", "onebit+ef | allgather",
    "lloyd(2)+ef | alltoall", "topk(0.1) | allgather", "topk(0.1)+ef | alltoall",
    'topk(0.1, values="bf16")+ef | allgather', "dgc(0.1) | allgather",
    "topk(0.1)+ef21 | allgather", "signsgd | vote", "none+server_momentum(0.9) | allreduce",
    "none+adam | allreduce",
    "topk(0.1)+ef | zen", 'topk(0.1)+ef | gtopk(variant="tree")', "topk(0.1)+ef | sparcml",
    'topk(0.1)+ef | zen(variant="paper")', "topk(0.1)+ef | hierarchical(outer='zen')",
    "int8+ef | offload(outer='alltoall')", "lloyd(2)+adam | offload(outer='alltoall')",
)  # fmt: skip
"""Both lists together have every collective of the README's table, and every feedback. To try
another strategy, add a line."""

VERDICT = "the step's end: here the host waits"
SPANS = "after it, how long spans took there"
BY_HOST = "a lane alone, for what comes down: over Gloo, and of what is offloaded"
LOOKS = "in every 64th step: what is large, for journals"
LISTS = "whether a payload can be read, where nothing else tells"
OWN = "of the twins alone: whether what was written here is a list"
UNDONE = "of a step that comes to nothing, once the verdict is known"
NOISE = "in every tenth step: the noise factor"
COUNTS = "once in a bucket: how much reaches a threshold, and how long that is in its code"
RAGGED = "how long what arrives is, payload after payload"
ROWS = "a lane alone: which rows of a table hold anything, and they"
BETWEEN = "what is decided between two moves"
KNOWN = {
    "runtime/verdict.py settle: tolist": VERDICT,
    "runtime/device_order.py since: an event": SPANS,
    "runtime/host_copies.py down_all: a stream's end": BY_HOST,
    "runtime/encoder.py _look: largest": LOOKS,
    "runtime/codec.py _undo: undo_topk": UNDONE,
    "runtime/encoder.py undoing: undo_topk": UNDONE,
    "runtime/shards.py undo: undo_topk": UNDONE,
    "runtime/stages.py _undo_from: undo_topk": UNDONE,
    "compressors/topk.py add: add_coded": OWN,
    "compressors/_ragged.py add: add_coded": OWN,
    "runtime/codec.py _encode: reach": COUNTS,
    "runtime/codec.py _compress_ragged: tolist": COUNTS,
    "runtime/codec.py conclude: __bool__": LISTS,
    "feedback/_measured.py opening: a copy down to memory that is not pinned": NOISE,
    "runtime/stages.py <listcomp>: a copy down to memory that is not pinned": BETWEEN,
    "runtime/stages.py <listcomp>: a copy up from memory that is not pinned": BETWEEN,
    "runtime/stages.py _compress: a copy down to memory that is not pinned": BETWEEN,
    "runtime/stages.py _decompress: a copy down to memory that is not pinned": BETWEEN,
    **dict.fromkeys((
        "compressors/_ragged.py _read: tolist", "runtime/message.py used: __int__",
        "streams/told.py longest: tolist", "runtime/sums.py sum_all: accumulate_coded",
        "runtime/verdict.py fine: __int__",
    ), RAGGED),
    **dict.fromkeys((
        "streams/rows.py nonzero: a copy down to memory that is not pinned",
        "streams/rows.py nonzero: nonzero_rows",
        "streams/rows.py put: a copy up from memory that is not pinned",
        "streams/rows.py put: first_violation",
        "streams/rows.py take: a copy down to memory that is not pinned",
        "streams/rows.py take: a copy up from memory that is not pinned",
        "streams/rows.py take: first_violation",
    ), ROWS),
    "collectives/powersgd.py _first_guess: a copy up from memory that is not pinned":
        "in the first step: the same random numbers everywhere",
}  # fmt: skip
"""Where the host waits (file, function, and for what), and why."""


class Place(NamedTuple):
    """A device, whether the network carries its tensors, and whether Triton's kernels are
    interpreted."""

    device: str
    carries: bool
    interpreted: bool = False


PLACES = [Place("cuda:0", True), Place("cuda:1", False)]
JOBS = [(text, PLACES[(i + turn) % 2]) for turn in range(2) for i, text in enumerate(TEXTS)]
MORE = [(text, place) for text in OTHERS for place in PLACES]


class Words(nn.Module):
    """An embedding with dense gradients; parameters in fp32 and bf16, small and large; and a
    transposed one, whose gradient is copied for its exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.one = nn.Linear(16, 80)
        self.one.weight = nn.Parameter(torch.randn(16, 80).mul_(0.1).t())
        self.norm = nn.LayerNorm(80)
        self.two = nn.Linear(80, 30, dtype=torch.bfloat16)
        self.head = nn.Linear(30, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(torch.tanh(self.one(self.words(x))))
        return self.head(torch.tanh(self.two(y.bfloat16())).float())


class Job(NamedTuple):
    """weights: a fingerprint of those at the end. states: one of what is remembered then. spoiled:
    the states after another step, which is not finite. found: what the host waited for, and what
    is not in order. used: devices whose streams were used."""

    weights: str
    states: str
    spoiled: list[Tensor]
    found: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()


Work = Callable[[nn.Module, int, "Scene | None"], Job]


def run(work: Work, place: Place | None) -> Job:
    """Runs the job on the place's device, or on processors if there is none."""
    torch.manual_seed(0)
    if place is None:
        return work(Words(), 1, None)
    if place.interpreted:
        from interpreter import quicken

        quicken()
    with posing(place.carries, place.interpreted) as scene:
        model = on_device(Words(), torch.device(place.device), scene)
        job = work(model, 1 if place.carries else 2, scene)
        used = frozenset(map(str, scene.cuda.used()))
        return job._replace(found=frozenset(scene.found), used=used)


def trained(text: str, place: Place | None) -> Job:
    """Two steps, and a third that one rank spoils."""

    def work(model: nn.Module, lanes: int, scene: Scene | None) -> Job:
        optimizer = optimizer_of(model, text)
        options = {"bucket_bytes": 6000, "lanes": lanes, "optimizer": optimizer}
        with _as_there(text, scene), attached(model, text, **options) as handle:
            for number in range(2):
                # With CUDA's own kernels, tables are copied to the device in the first step, and
                # stay.
                watches = number > 0 or place is None or not place.interpreted
                step(model, optimizer, number, scene if watches else None)
            weights, states = fingerprint(behind([*model.parameters()])), remembered(handle)
            step(model, None, 2, scene if place is None or not place.interpreted else None,
                 spoiled=dist.get_rank() == 1)  # fmt: skip
            for p in model.parameters():
                assert p.grad is not None
                assert bool(p.grad.isnan().all()), "on every rank"
            assert handle.stats()["steps"] == 3.0
            return Job(weights, fingerprint(states), remembered(handle))

    return run(work, place)


@contextmanager
def _as_there(text: str, scene: Scene | None) -> Iterator[None]:
    """Makes equal what differs on purpose between processors and a device: own views that take no
    memory, and products of matrices in bf16."""
    swaps = own_view.swaps
    apart = scene is None and "offload" in text
    with (
        patch.object(own_view, "swaps", lambda weights, v: not apart and swaps(weights, v)),
        patch.object(_orthogonal, "_HAS_BFLOAT16", True),
    ):
        yield


def step(
    model: nn.Module, optimizer: Any, number: int, scene: Scene | None, spoiled: bool = False
) -> None:
    model.zero_grad()
    loss = model(batch(number)).square().mean()
    with scene.watching() if scene is not None else nullcontext():
        (loss * torch.inf if spoiled else loss).backward()
    if optimizer is not None:
        optimizer.step()


def batch(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    return torch.randint(0, 40, (8,), generator=generator)


def optimizer_of(model: nn.Module, text: str = "") -> Any:
    """An optimizer that leaves to the strategy what the strategy keeps."""
    if "muon" in text:
        return gradwire.optim.Muon.of(model, lr=1e-2)
    if "adam" in text:
        return gradwire.optim.AdamW(model.parameters(), 1e-3)
    return gradwire.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def remembered(handle: Handle) -> list[Tensor]:
    """Copies of this rank's states, on processors."""
    states = entry(handle)["state"]
    kept = [x for _, own in sorted(states.items()) for _, x in sorted(own.items())]
    return [x.clone() for x in behind(kept)]


def same(here: Sequence[Job], there: Sequence[Job], place: Place) -> None:
    """Results are as on processors, and on that device alone. After a step that is not finite,
    states are as they were to rounding, since owners may learn of it when they have encoded
    already."""
    for wanted, found in zip(here, there, strict=True):
        assert found.weights == wanted.weights
        assert found.states == wanted.states
        assert found.used == {place.device}
        for x, y in zip(found.spoiled, wanted.spoiled, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@cache
def jobs(ranks: Ranks, text: str, place: Place) -> list[Job]:
    """The jobs of all ranks."""
    return ranks.run(trained, text, place)


@pytest.mark.every
@pytest.mark.parametrize(("text", "place"), first([*JOBS, *MORE], len(TEXTS)))
def test_a_job_ends_as_on_processors(two: Ranks, text: str, place: Place) -> None:
    here, there = two.run(trained, text, None), jobs(two, text, place)
    same(here, there, place)
    assert not {line for job in there for line in job.found} - set(KNOWN)


def test_what_is_known_still_is(two: Ranks) -> None:
    """A wait that was removed from the code must leave the list."""
    found = set[str]()
    for turn, text in enumerate(SHOWN_BY):
        for job in jobs(two, text, PLACES[turn % 2]):
            found |= job.found
    assert found == set(KNOWN)


@pytest.mark.parametrize(
    "text",
    first(
        ("topk(0.1)+ef | allgather", "int8+ef | alltoall", "none | allreduce",
         "dgc(0.1) | alltoall", "lloyd(2)+adam | alltoall")
    ),
)  # fmt: skip
def test_cuda_s_own_kernels_end_as_on_processors(two: Ranks, text: str) -> None:
    """In Triton's interpreter, too, tables, launches and rooms are on the tensors' device."""
    pytest.importorskip("triton")
    place = Place("cuda:1", False, interpreted=True)
    there = two.run(trained, text, place)
    same(two.run(trained, text, None), there, place)
    asking = {line.split(": ")[0] for job in there for line in job.found}
    # The values are read by other operations.
    assert not asking - {line.split(": ")[0] for line in KNOWN}


# -- what else a job does ----------------------------------------------------------------------


def lived(place: Place | None) -> Job:
    """Adopted plans, one of them in the host's memory; accumulation; an exchange without a
    backward; a flush; clipping; and a state that is saved and loaded."""

    def work(model: nn.Module, lanes: int, scene: Scene | None) -> Job:
        optimizer = optimizer_of(model)
        options = {"bucket_bytes": 6000, "lanes": lanes}
        with attached(model, "dgc(0.1) | alltoall", **options) as handle:
            for number in range(2):
                step(model, optimizer, number, scene)
            saved = handle.state_dict()
        with attached(model, "dgc(0.1) | alltoall", clip_norm=0.1, **options) as handle:
            handle.load_state_dict(saved)
            step(model, optimizer, 2, scene)
            model.zero_grad()
            handle.flush()
            optimizer.step()
        with attached(model, "topk(0.1)+ef | allgather", **options) as handle:
            for number, text in enumerate(ADOPTED):
                with handle.no_sync():
                    step(model, None, number, scene)
                handle.synchronize()
                optimizer.step()
                plan, strategies = handle.plan, (Strategy.parse(text),) * len(handle.plan.buckets)
                handle.adopt(Plan(plan.buckets, strategies, plan.lanes))
                step(model, optimizer, 10 + number, scene)
            states = remembered(handle)
        return Job(fingerprint(behind([*model.parameters()])), fingerprint(states), states)

    return run(work, place)


ADOPTED = ("int8+ef | alltoall", "topk(0.1)+ef | offload", "bf16+ef | allgather")


@pytest.mark.parametrize("place", first((place,) for place in PLACES[::-1]))
def test_the_rest_of_a_job_s_life(two: Ranks, place: Place) -> None:
    here, there = two.run(lived, None), two.run(lived, place)
    same(here, there, place)
    clips = "training/clipping.py learn: __float__"  # all gradients' norm, before they are sent
    assert not {line for job in there for line in job.found} - {*KNOWN, clips}


# -- what is wrong on purpose ------------------------------------------------------------------


def no_wait(order: LaneOrder, before: Any) -> Any:
    return torch.cuda.stream(order.stream)  # type: ignore[arg-type]


def own_current(made: Made) -> None:
    made._streams.add(torch.cuda.current_stream())


def any_stream(order: LaneOrder, device: torch.device) -> None:
    order._device, order.stream = device, torch.cuda.Stream()  # type: ignore[no-untyped-call]


def asks(verdict: Verdict, headers: Tensor, where: str = "") -> None:
    verdict._told.append((headers.clone(), where))
    assert not bool(verdict.word)


def brings(verdict: Verdict, headers: Tensor, where: str = "") -> None:
    verdict._told.append((headers.clone(), where))
    verdict.word.bitwise_or_(torch.tensor([0], device=headers.device))


def nothing(*_: Any) -> None:
    pass


def pageable(scratch: kernels.Scratch, *, pinned: bool = False) -> None:
    scratch._pinned, scratch._kept = False, {}


WRONG = {
    "a lane waits for no gradient": (LaneOrder, "after", no_wait, "lane does not wait for main"),
    "nobody waits for a lane": (LaneOrder, "join", nothing, "main does not wait for lane"),
    "the current device's stream": (Made, "add", own_current, "cuda:0"),
    "a lane of the current device": (LaneOrder, "__init__", any_stream, "cuda:0"),
    "a read": (Verdict, "hear", asks, "runtime/context.py accumulate: __bool__"),
    "numbers of the host's": (Verdict, "hear", brings, "memory that is not pinned"),
    "a pageable room": (kernels.Scratch, "__init__", pageable, "memory that is not pinned"),
}  # fmt: skip
"""Which method is replaced by a wrong one, and what the report says of it."""


def trained_wrongly(name: str) -> set[str]:
    of, method, wrong, _ = WRONG[name]
    with patch.object(of, method, wrong):
        job = trained("topk(0.1)+ef | allgather", PLACES[1])
    return {*job.found, *job.used}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.every
def test_what_is_wrong_is_noted(two: Ranks, name: str) -> None:
    for found in two.run(trained_wrongly, name):
        told = {line for line in found if WRONG[name][-1] in line}
        assert told - set(KNOWN), sorted(found)


def not_waiting() -> bool:
    """Whether the result differs if the host never waits."""
    right = trained("none | allreduce", None)
    try:
        with patch.object(Stream, "synchronize", nothing):
            return trained("none | allreduce", PLACES[1]).weights != right.weights
    except AssertionError:  # a value that should be NaN was not
        return True


def test_what_comes_down_is_garbage_until_somebody_waits(two: Ranks) -> None:
    assert two.run(not_waiting) == [True, True]
