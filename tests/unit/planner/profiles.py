"""Made-up profiles: ResNet-50's tensors, and wires with known costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradwire.buckets import Parameter
from gradwire.planner.curves import Curve
from gradwire.planner.fit import Fit, fit
from gradwire.planner.pricing import price
from gradwire.planner.profile import Contention, LocalCost, Profile, Ready, StrategyCost

SIZES = (256, 4096, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
STARTS = {"all_reduce": 2, "all_gather": 1, "all_to_all": 1}
INEFFICIENCY = {"all_reduce": 1.1, "all_gather": 1.15, "all_to_all": 1.5, "exchange": 1.2}
LOCAL = {
    "none | allreduce": ((1e-5, 0.2e-9), (1e-5, 0.3e-9)),
    "bf16 | allreduce": ((2e-5, 0.3e-9), (1e-5, 0.3e-9)),
    "int8+ef | alltoall": ((4e-5, 0.8e-9), (8e-5, 1.2e-9)),
    "topk(0.01)+ef | allgather": ((6e-5, 1.0e-9), (8e-5, 0.4e-9)),
    'topk(0.01)+ef | gtopk(variant="butterfly")': ((9e-5, 1.1e-9), (2e-4, 0.9e-9)),
}
"""Fixed seconds and seconds per element, of encode and of decode, among four ranks."""


def resnet50() -> list[Parameter]:
    """The 161 tensors of ResNet-50, with 25.6 million elements."""
    found = [Parameter("conv1.weight", (64, 3, 7, 7)), *_norm("bn1", 64)]
    wide = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            found += _block(f"layer{stage}.{block}", width, wide, first=block == 0)
            wide = 4 * width
    return [*found, Parameter("fc.weight", (1000, 2048)), Parameter("fc.bias", (1000,))]


def _block(name: str, width: int, wide: int, first: bool) -> Iterator[Parameter]:
    shapes = ((width, wide, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1))
    for i, shape in enumerate(shapes, 1):
        yield Parameter(f"{name}.conv{i}.weight", shape)
        yield from _norm(f"{name}.bn{i}", shape[0])
    if first:
        yield Parameter(f"{name}.down.0.weight", (4 * width, wide, 1, 1))
        yield from _norm(f"{name}.down.1", 4 * width)


def _norm(name: str, width: int) -> list[Parameter]:
    return [Parameter(f"{name}.{part}", (width,)) for part in ("weight", "bias")]


def few() -> list[Parameter]:
    """Six matrices and a vector."""
    return [*(Parameter(f"w{i}", (512, 512)) for i in range(6)), Parameter("b", (512,))]


def profile(
    world: int = 4, bits_per_second: float = 1e9, start_seconds: float = 1e-4,
    parameters: Sequence[Parameter] = (), backward_seconds: float = 0.2,
    strategies: Sequence[str] = tuple(LOCAL),
) -> Profile:  # fmt: skip
    """One rank on each host. Larger tensors take longer in backward; the last registered go
    first."""
    own = list(reversed(list(parameters) or few()))
    total, at, ready = sum(p.elements**0.5 for p in own), 0.0, []
    for p in own:
        at += backward_seconds * p.elements**0.5 / total
        ready.append(Ready(p, at))
    costs = {s: cost(s, world, bits_per_second, start_seconds) for s in strategies}
    hosts = tuple(f"h{rank}" for rank in range(world))
    return Profile(tuple(ready), backward_seconds, 0.15, hosts, contention=Contention(2.0, 0.3),
                   strategies=costs)  # fmt: skip


KINDS = {
    "all_reduce float32": 1.5, "reduce float32": 2.0, "reduce_scatter float32": 1.5,
    "all_gather uint8": 3.0, "gather uint8": 3.0, "broadcast uint8": 2.0, "all_to_all uint8": 0.8,
}  # fmt: skip
"""How many times a rank's bytes pass a link, among four ranks."""


def with_parts(
    given: Profile, left: str = "topk(0.01)+ef", *, bits_per_second: float = 1e9,
    start_seconds: float = 1e-4, work: float = 1e-9,
) -> Profile:  # fmt: skip
    """The profile with costs of single moves, ten times as fast inside machines, and of
    compressors. work: seconds per element that is compressed."""
    links = {"world": (1.0, 1.0), "cross": (1.0, 2.0), "node": (0.3, 0.1)}
    moves = {
        f"{kind} {where}": line(start * start_seconds, rate * times * 8 / bits_per_second)
        for kind, times in KINDS.items() for where, (start, rate) in links.items()
    }  # fmt: skip
    compressors = {
        f"{left} @ cpu": LocalCost(
            line(5e-5, work), line(1e-5, 0.1 * work), line(1e-5, 0.02 * work)
        ),
        "none @ cpu": LocalCost(*[line(1e-6, 2e-10)] * 3),
    }
    return replace(given, moves=moves, compressors=compressors)


def line(fixed: float, slope: float) -> Fit:
    """The seconds of size 0, and the seconds per unit."""
    return Fit(Curve(((0.0, fixed),), slope))


def cost(text: str, world: int, bits_per_second: float, start_seconds: float) -> StrategyCost:
    moves = {n: price(text, [n], world) for n in SIZES}
    wire = fit([
        (n, [sum(
            start_seconds * STARTS.get(m.name, 0) * (world - 1)
            + (start_seconds if m.name == "exchange" else 0.0)
            + INEFFICIENCY[m.name] * 8 * m.busiest / bits_per_second
            for m in priced.moves
        )])
        for n, priced in moves.items()
    ])  # fmt: skip
    sent = fit([(n, [priced.bytes_sent]) for n, priced in moves.items()])
    encode, decode = (line(fixed, slope) for fixed, slope in LOCAL[text])
    return StrategyCost(
        encode, wire, decode, sent,
        latency_seconds=wire.curve(0.0), per_parameter_seconds=1e-5,
    )  # fmt: skip
