"""Kernels of processors or of a GPU against torch, and against the memory that they work on.

One thread. The contestants take turns, each time in another order, so that a disturbance hits them
alike; gradients rotate among several buffers, so that none is in a cache; each range printed is
that of all turns. On a GPU a turn lasts from the call to its last kernel's end, with gaps where
the host is the slower of both, and what memory allows is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from gradwire.bench.machine import ELEMENTS, native
from gradwire.errors import KernelError
from gradwire.progress import Progress, silent

if TYPE_CHECKING:
    import torch

    from gradwire.kernels.values import Hint

    Clock = Callable[[Callable[[], object]], float]

DENSITY = 0.001
MOMENTUM = 0.9
BUFFERS = 6
RANKS = 4
SETTLING = 40
"""Steps until a residual is about as large as it gets: in those before, the threshold of the last
step lets several times as many candidates through."""
SLOW_SECONDS = 0.2  # what takes longer gets a fifth of the turns


@dataclass(frozen=True)
class Row:
    """One contestant. Times in seconds per call; ratios are of medians."""

    kernel: str
    seconds: float
    seconds_least: float
    seconds_most: float
    turns: int
    bytes: int
    bytes_per_second: float
    times_faster_than_torch: dict[str, float]
    fraction_of_memory_limit: float


@dataclass
class _Contestant:
    name: str
    call: Callable[[int], object]  # gets the number of the turn
    bytes: int
    limit: str  # the contestant whose rate is the memory limit of this kind of access, or "copy"
    rivals: tuple[str, ...] = ()
    seconds: list[float] = field(default_factory=list)

    def take_turn(self, turn: int, clock: Clock) -> None:
        if self.takes(turn):
            self.seconds.append(clock(lambda: self.call(turn)))

    def takes(self, turn: int) -> bool:
        is_slow = len(self.seconds) > 1 and min(self.seconds) > SLOW_SECONDS
        return turn % 5 == 0 or turn < 2 or not is_slow

    def work(self, turns: int) -> float:
        """The seconds that so many turns take, by the fastest so far."""
        return min(self.seconds, default=0.0) * sum(map(self.takes, range(turns)))

    def settled(self) -> list[float]:
        """The times without the first turn's, which has cold caches and unknown hints."""
        return self.seconds[1:] or self.seconds


def measure(
    elements: int = ELEMENTS, repeats: int = 25, device: str = "cpu", progress: Progress = silent
) -> list[Row]:
    """Times every kernel on `elements` fp32 values, with one thread, `repeats` turns each.

    Needs about 110 bytes of the device's memory per element. KernelError without the native
    extension, or on "cuda" where its kernels cannot run.
    """
    import torch

    references, clock = _references, _host_seconds
    if device != "cpu":
        check_cuda()
        references, clock = _copies, _device_seconds
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        progress("drawing gradients")
        contestants = _contestants(elements, device, references)
        order = Random(0)
        for turn in range(repeats + 1):
            for contestant in order.sample(contestants, len(contestants)):
                if turn == 0:  # how long a turn takes is not known
                    progress("first turns", now=contestant.name)
                contestant.take_turn(turn, clock)
                if turn > 0:
                    _tell(contestants, repeats + 1, contestant.name, progress)
    finally:
        torch.set_num_threads(before)
    return _rows(contestants)


def _tell(contestants: list[_Contestant], turns: int, now: str, progress: Progress) -> None:
    """Reports the progress by the contestants' own times: kernels are a hundred times as fast as
    twins."""
    done = sum(min(own.seconds) * len(own.seconds) for own in contestants)
    progress("kernels", done, sum(own.work(turns) for own in contestants), now)


def check_cuda() -> None:
    """Raises KernelError unless kernels in Triton run on the current device."""
    import torch

    from gradwire.kernels.rooms import why_no_triton

    why = "torch sees no CUDA device" if not torch.cuda.is_available() else why_no_triton()
    if why:
        raise KernelError(
            f"the benchmark of CUDA kernels needs a GPU on which they run, but {why}; see "
            "`gradwire doctor`, or leave --device out"
        )


def _host_seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _device_seconds(work: Callable[[], object]) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _contestants(
    n: int, device: str, references: Callable[[list[torch.Tensor]], list[_Contestant]]
) -> list[_Contestant]:
    import torch

    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(n, generator=generator).to(device) for _ in range(BUFFERS)]
    return [
        *references(gradients),
        *_selections(gradients),
        *_updates(gradients),
        *_adam(gradients),
        *_sums(gradients),
    ]


def _copies(gradients: list[torch.Tensor]) -> list[_Contestant]:
    """Shows what a device's memory allows: a copy."""
    n, room = gradients[0].numel(), gradients[0].clone()

    def copy(turn: int) -> None:
        room.copy_(gradients[turn % BUFFERS])

    return [_Contestant("copy", copy, 8 * n, "copy")]


def _references(gradients: list[torch.Tensor]) -> list[_Contestant]:
    """Shows what memory allows: one read, one that writes half as many bytes, and the update's
    traffic without any selection."""
    import torch

    from gradwire.kernels.memory import zeros

    n, (core, which) = gradients[0].numel(), native()
    u, v, half = zeros(n), zeros(n), torch.empty(n, dtype=torch.bfloat16)

    def read(turn: int) -> None:
        core.stream_read(which, gradients[turn % BUFFERS].data_ptr(), n)

    def halve(turn: int) -> None:
        core.stream_halve(which, gradients[(turn + 1) % BUFFERS].data_ptr(), half.data_ptr(), n)

    def update(turn: int) -> None:
        g = gradients[turn % BUFFERS]
        core.stream_update(which, g.data_ptr(), u.data_ptr(), v.data_ptr(), n, MOMENTUM)

    return [
        _Contestant("read", read, 4 * n, "read"),
        _Contestant(
            "torch sum", lambda turn: gradients[(turn + 1) % BUFFERS].sum(), 4 * n, "read"
        ),
        _Contestant("stream cast", halve, 6 * n, "stream cast"),
        _Contestant("stream update", update, 20 * n, "stream update"),
    ]


def _selections(gradients: list[torch.Tensor]) -> list[_Contestant]:
    import torch

    import gradwire.kernels.torch as twins
    from gradwire.kernels.selection import topk
    from gradwire.kernels.status import new_status

    n = gradients[0].numel()
    k = max(1, round(n * DENSITY))
    device, status = gradients[0].device, new_status(gradients[0].device)
    indices, values = torch.empty(k, dtype=torch.int32, device=device), gradients[0].new_empty(k)
    magnitude = gradients[0].new_empty(n)
    hint: Hint = 0.0

    def native(turn: int) -> None:
        nonlocal hint
        hint = topk(gradients[(turn + 2) % BUFFERS], k, indices, values, status, hint)

    def cold(turn: int) -> None:
        topk(gradients[(turn + 3) % BUFFERS], k, indices, values, status)

    def torch_topk(turn: int) -> None:
        torch.topk(gradients[(turn + 4) % BUFFERS].abs(), k)

    def tuned_topk(turn: int) -> None:
        torch.abs(gradients[(turn + 4) % BUFFERS], out=magnitude)
        torch.topk(magnitude, k, sorted=False)

    def twin(turn: int) -> None:
        twins.topk(gradients[(turn + 5) % BUFFERS], k, indices, values, status)

    rivals = ("torch.topk(abs)", "the same, unsorted, into a buffer", "topk twin")
    return [
        _Contestant("topk", native, 4 * n, "read", rivals),
        _Contestant("topk, no hint", cold, 4 * n, "read", rivals),
        _Contestant(rivals[0], torch_topk, 4 * n, "read"),
        _Contestant(rivals[1], tuned_topk, 4 * n, "read"),
        _Contestant(rivals[2], twin, 4 * n, "read"),
    ]


def _updates(gradients: list[torch.Tensor]) -> list[_Contestant]:
    """Each contestant has a state of its own, the same at first, of a job under way, and sees the
    same sequence of gradients."""
    import torch

    import gradwire.kernels.torch as twins
    from gradwire.kernels.memory import zeros
    from gradwire.kernels.segments import UpdateTopk
    from gradwire.kernels.status import new_status
    from gradwire.kernels.update import update_topk

    n = gradients[0].numel()
    k = max(1, round(n * DENSITY))
    device = gradients[0].device
    states = [(zeros(n, device), zeros(n, device)) for _ in range(3)]
    indices = torch.empty(k, dtype=torch.int32, device=device)
    values, velocities, magnitude = (gradients[0].new_empty(size) for size in (k, k, n))
    status = new_status(device)
    hint: Hint = 0.0

    def native(turn: int) -> None:
        nonlocal hint
        g, (u, v) = gradients[turn % BUFFERS], states[0]
        hint = update_topk(
            g, u, v, k, indices, values, velocities, status, momentum=MOMENTUM, hint=hint
        )

    def best_torch(turn: int) -> None:
        g, (u, v) = gradients[turn % BUFFERS], states[1]
        u.mul_(MOMENTUM).add_(g)
        v.add_(u)
        torch.abs(v, out=magnitude)
        place = torch.topk(magnitude, k, sorted=False).indices
        v[place].clone()
        v.index_fill_(0, place, 0.0)
        u.index_fill_(0, place, 0.0)

    def twin(turn: int) -> None:
        g, (u, v) = gradients[turn % BUFFERS], states[2]
        segment = UpdateTopk(g, u, v, k, indices, values, velocities, MOMENTUM)
        twins.update_topk([segment], status)

    for turn in range(SETTLING):
        native(turn)
    for u, v in states[1:]:
        u.copy_(states[0][0])
        v.copy_(states[0][1])
    rivals = ("update in torch, with torch.topk", "update_topk twin")
    return [
        _Contestant("update_topk", native, 20 * n, "stream update", rivals),
        _Contestant(rivals[0], best_torch, 20 * n, "stream update"),
        _Contestant(rivals[1], twin, 20 * n, "stream update"),
    ]


def _adam(gradients: list[torch.Tensor]) -> list[_Contestant]:
    """One rank's step with its codes, compared with the whole step of torch's AdamW."""
    import torch

    from gradwire.kernels.adam import adam_codes
    from gradwire.kernels.formats import LLOYD1, LLOYD2, Format
    from gradwire.kernels.memory import zeros
    from gradwire.kernels.segments import AdamCodes
    from gradwire.kernels.status import new_status
    from gradwire.kernels.values import AdamStep, Noise

    n, how, noise = gradients[0].numel(), AdamStep.of(10, 0.9, 0.999, 1e-8), Noise.of("adam")
    device = gradients[0].device
    moments, v, status = (zeros(n, device), zeros(n, device)), zeros(n, device), new_status(device)
    weights = torch.nn.Parameter(zeros(n, device))
    optimizer = torch.optim.AdamW([weights], fused=True)

    def step(form: Format) -> Callable[[int], object]:
        codes = torch.empty(form.code_bytes(n), dtype=torch.uint8, device=device)
        scales = zeros(form.scales(n), device)
        ones = [
            AdamCodes(form, gradient, moments, v, how, codes, scales, noise)
            for gradient in gradients
        ]
        return lambda turn: adam_codes([ones[turn % BUFFERS]], status)

    def whole(turn: int) -> None:
        weights.grad = gradients[(turn + 2) % BUFFERS]
        optimizer.step()

    rival = "torch AdamW, fused"
    return [
        _Contestant("adam, one bit", step(LLOYD1), 28 * n + n // 8, "stream update", (rival,)),
        _Contestant("adam, two bits", step(LLOYD2), 28 * n + n // 4, "stream update", (rival,)),
        _Contestant(rival, whole, 28 * n, "stream update"),
    ]


def _sums(gradients: list[torch.Tensor]) -> list[_Contestant]:
    import torch

    import gradwire.kernels.torch as twins
    from gradwire.kernels.casts import cast
    from gradwire.kernels.sparse import accumulate

    n = gradients[0].numel()
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.rand(n, generator=generator) < DENSITY for _ in range(RANKS)]
    device = gradients[0].device
    places = [p.nonzero().view(-1).int().to(device) for p in drawn]
    values = [torch.randn(p.numel(), generator=generator).to(device) for p in places]
    out, half = gradients[0].new_empty(n), gradients[0].new_empty(n, dtype=torch.bfloat16)
    rivals = ("accumulate twin", "cast twin")

    def native_sum(turn: int) -> None:
        accumulate(out, places, values, RANKS)

    def twin_sum(turn: int) -> None:
        twins.accumulate(out, places, values, RANKS)

    def native_cast(turn: int) -> None:
        cast(gradients[turn % BUFFERS], half)

    def twin_cast(turn: int) -> None:
        twins.cast(gradients[(turn + 3) % BUFFERS], half)

    return [
        _Contestant(f"accumulate, {RANKS} payloads", native_sum, 4 * n, "read", rivals[:1]),
        _Contestant(rivals[0], twin_sum, 4 * n, "read"),
        _Contestant("cast to bf16", native_cast, 6 * n, "stream cast", rivals[1:]),
        _Contestant(rivals[1], twin_cast, 6 * n, "stream cast"),
    ]


def _rows(contestants: list[_Contestant]) -> list[Row]:
    seconds = {c.name: median(c.settled()) for c in contestants}
    rate = {c.name: c.bytes / seconds[c.name] for c in contestants}
    return [
        Row(
            kernel=c.name,
            seconds=seconds[c.name],
            seconds_least=min(c.settled()),
            seconds_most=max(c.settled()),
            turns=len(c.settled()),
            bytes=c.bytes,
            bytes_per_second=rate[c.name],
            times_faster_than_torch={r: seconds[r] / seconds[c.name] for r in c.rivals},
            fraction_of_memory_limit=rate[c.name] / rate[c.limit if c.limit in rate else "copy"],
        )
        for c in contestants
    ]
