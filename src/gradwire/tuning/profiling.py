"""Measures the profile of an attached model on its machines."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from statistics import median

import torch
from torch import Tensor

from gradwire.buckets import Parameter, parameter_of
from gradwire.dynamics import PLAIN, Dynamics, all_dynamics
from gradwire.planner.candidates import BF16, FP32
from gradwire.planner.profile import Profile, Ready, TableCost, main_dtype, main_width
from gradwire.planner.stages import way
from gradwire.progress import Progress, silent
from gradwire.runtime.process_groups import exchange_text, machine_name
from gradwire.runtime.torch_dist import backend_of
from gradwire.soundness import leaves_moments, update_rule
from gradwire.strategy import Strategy
from gradwire.training.recommend import all_sound, with_moments_of, works_beside
from gradwire.training.session import Session
from gradwire.tuning.agree import from_first, now, of_ranks
from gradwire.tuning.contention import measure as measure_contention
from gradwire.tuning.probe import Probe
from gradwire.tuning.recorder import Recorder, Watched

STRATEGIES = (
    "none | allreduce", "bf16 | allreduce", "int8+ef | alltoall", "qsgd(4) | alltoall",
    "sign(scaled=True)+ef | allgather", "topk(0.01)+ef | allgather", "powersgd(4)",
)  # fmt: skip
"""The strategies to measure and to plan with, unless others are requested."""
OF_MOMENTUM = ("dgc(0.01) | allgather",)
"""Those that keep the momentum of SGD, which others of a plan must keep then, too. It learns less
on text, so that no plan has it yet; a profile does."""
_EXACT_ENOUGH = ("int8 | alltoall",)
"""Formats beside fp32 and bf16 that need no feedback, whatever the momentum is."""
OF_TABLES = "none | columns", "nonzero | zen", "nonzero | sparcml", "none | allgather"
"""The strategies to measure for tables whose gradients are rows."""
OF_TABLES_IN_MACHINES = ('nonzero | hierarchical(outer="zen")',)
"""Further ones for such tables, if several machines have several ranks each."""
OF_MACHINES = ('bf16 | hierarchical(outer="allreduce")', "topk(0.01)+ef | hierarchical")
"""Further strategies to measure, if several machines have several ranks each."""
OF_MOMENTUM_IN_MACHINES = ("dgc(0.01) | hierarchical",)
"""Further ones that keep the momentum of SGD, then."""
OF_DEVICES = ('int8+ef | offload(outer="alltoall")', "topk(0.01)+ef | offload")
"""Further ones, if gradients are on a device, and tensors in the host's memory can be sent too."""


_BUSY = 0.5
"""Processors: a backward that uses fewer than this waits for something else than processors."""
_MOVED = 1 << 22
"""Elements: more weights are not made to find out how long an optimizer takes to change them."""


def beside_moments(optimizer: object) -> tuple[str, ...]:
    """Returns the strategies to plan with, unless others are requested, beside an optimizer that
    leaves its moments to the plan: those known to be sound with it from the first step on, of one
    dynamics. Returns none beside any other optimizer, and beside SGD, which keeps its momentum."""
    if not leaves_moments(optimizer):
        return ()
    rule = update_rule(optimizer)
    known = [
        str(with_moments_of(optimizer, strategy)) for strategy, _ in all_sound(optimizer)
        if works_beside(strategy, optimizer) and Dynamics.of(strategy).feedback
        and strategy.feedback is not None and strategy.feedback.rule == rule != "linear"
    ]  # fmt: skip
    first = [Dynamics.of(Strategy.parse(text)) for text in known[:1]]
    alike = [text for text in known if Dynamics.of(Strategy.parse(text)) in first]
    return (*alike, *_EXACT_ENOUGH) if alike else ()


def has_levels(session: Session) -> bool:
    """Whether there are several machines of several ranks each."""
    machines = session.machines
    return machines is not None and 1 < machines.per_node < session.world


def usual_strategies(session: Session, for_any: bool = False) -> tuple[str, ...]:
    """Returns the strategies to measure unless others are requested. for_any: whether for plans
    beside any optimizer, also SGD with momentum, which such a plan keeps."""
    optimizer, in_machines = session.settings.optimizer, has_levels(session)
    of_momentum = (*OF_MOMENTUM, *(OF_MOMENTUM_IN_MACHINES if in_machines else ()))
    if own := beside_moments(optimizer):
        return own
    carried = backend_of(session.performers[0].group, torch.device("cpu"))
    may_offload = session.device.type != "cpu" and carried
    return (
        *STRATEGIES, *(OF_MACHINES if in_machines else ()), *(OF_DEVICES if may_offload else ()),
        *(of_momentum if for_any else ()),
    )  # fmt: skip


def measure(
    session: Session, recorder: Recorder, strategies: Sequence[str] = STRATEGIES,
    progress: Progress = silent,
) -> Profile:  # fmt: skip
    """Measures the whole profile, and returns the same on every rank. Collective; blocks for half
    a minute or so.

    Call it between two steps. It uses the session's own first lane; with a sharded model, those of
    all replicate groups at once. The profile is then of rank 0's parts, which are the largest:
    torch gives the first rank most of what does not divide evenly.
    """
    performer, circle, device = session.performers[0], session.circle, session.device
    ready, backward, around = _timings(session, recorder)
    if session.clip is not None and session.clip.waits:  # clipping waits for the last gradient
        ready = tuple(r._replace(seconds=backward) for r in ready)
    width = main_width(ready)
    probe = Probe(performer, session.machines, main_dtype(ready), width, circle)
    largest = sum(r.parameter.elements for r in ready if not r.parameter.sparse)
    texts = asked(strategies)
    progress("how lanes and backward slow each other")
    with torch.random.fork_rng(devices=[]):  # leaves the job's own random state untouched
        is_busy = _is_busy(session, recorder)
        contention = measure_contention(session.performers, device, is_busy, circle)
        costs = probe.costs(texts, largest, progress)
        tables = tuple(_tables(probe, session, recorder, progress))
    own = Profile(
        ready=ready, backward_seconds=backward, around_seconds=around,
        moments_seconds=_moments_seconds(session, recorder),
        hosts=tuple(exchange_text(machine_name(), performer.group, device)),
        device=device.type, backend=backend_of(performer.group, device),
        contention=contention, strategies=costs, tables=tables, width=width,
        versions={
            "gradwire": version("gradwire"), "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )  # fmt: skip
    return Profile.from_json(from_first(circle, own.to_json))


def _tables(
    probe: Probe, session: Session, recorder: Recorder, progress: Progress
) -> Iterator[TableCost]:
    """Yields the costs of tables, together as in the plan in force, if every rank had rows of
    each."""
    for bucket in session.plan.buckets:
        if not bucket.has_rows:
            continue
        given = [recorder.tables.get(name) for name in bucket.names]
        here = [float(x is not None) for x in given]
        if not bool(of_ranks(session.circle, here).all()):
            continue
        for text in (*OF_TABLES, *(OF_TABLES_IN_MACHINES if has_levels(session) else ())):
            progress("tables", now=f"'{text}' of {', '.join(bucket.names[:3])}")
            yield probe.table(text, bucket.parameters, [x for x in given if x is not None])


def asked(strategies: Sequence[str]) -> list[str]:
    """Returns the strategies to measure in order to plan with these: fp32, bf16, and these; each
    also with the dynamics of those beside which it may be used, if that changes its work on the
    way; and how parameters of the optimizer's other rule then travel."""
    texts = FP32, BF16, *strategies
    kinds = all_dynamics(map(Strategy.parse, strategies))
    taken = [found for kind in kinds for text in texts if (found := kind.take(text))]
    own = dict.fromkeys((*taken, *strategies))
    wanted = [way(text, is_other) for text in own for is_other in (False, True)]
    return list(dict.fromkeys((FP32, BF16, *map(_on_the_way, wanted))))


def _on_the_way(text: str) -> str:
    """Returns the strategy that takes as long on the way: without a feedback that only works on
    averages."""
    made = Strategy.parse(text)
    if made.feedback is None or not made.feedback.sends_all:
        return text
    return str(Strategy(made.compressor, made.collective))


def _timings(session: Session, recorder: Recorder) -> tuple[tuple[Ready, ...], float, float]:
    """Returns when the last rank has each gradient, how long backward lasts, and the time around.

    Times count from the end of an exchange, which ranks leave together, so that a rank with a late
    forward is not counted as late again in its backward. Each is the mean over the middle steps:
    means of parts that now and then take long add up, medians do not.
    """
    described = _parameters(session)
    names = list(described)
    times = of_ranks(session.circle, [_row(step, names) for step in recorder.steps])
    around = float(_middle(times[..., 0].mean(0)))
    ready = _middle((times[..., 0:1] + times[..., 1:]).amax(0)).sub(around).clamp(0)
    thin = [recorder.density.get(name, 1.0) for name in names]
    density = of_ranks(session.circle, thin).amax(0).tolist()
    *seconds, backward = ready.tolist()
    found = [
        Ready(described[name], at, thinness, name in recorder.others)
        for name, at, thinness in zip(names, seconds, density)
    ]
    found.reverse()  # at equal times the last registered comes first
    return tuple(sorted(found, key=lambda own: own.seconds)), backward, around


def _moments_seconds(session: Session, recorder: Recorder) -> float:
    """Returns what the optimizer takes for moments of its own, which a plan that keeps them spares
    it: a watched step but for what it takes to decay weights and to subtract from them. Collective
    unless the plan in force keeps the moments already."""
    if Dynamics.of(session.plan.main_strategy) != PLAIN:
        return 0.0
    stepping = of_ranks(session.circle, [[step.stepping] for step in recorder.steps])
    moved = of_ranks(session.circle, [_moved_seconds(session)]).mean()
    return max(0.0, float(_middle(stepping.mean(0)[..., 0]) - moved))


def _moved_seconds(session: Session) -> float:
    """Returns seconds in which weights are multiplied and added to: the best of three, on as many
    elements as fit, at the rate of these."""
    wanted = sum(p.elements for bucket in session.plan.buckets for p in bucket.parameters)
    weights = torch.zeros(max(1, min(wanted, _MOVED)), device=session.device, dtype=torch.float32)
    steps, took = torch.zeros_like(weights), list[float]()
    for _ in range(3):
        began = now(session.device)
        weights.mul_(0.5).add_(steps, alpha=-0.5)
        took.append(now(session.device) - began)
    return min(took) * wanted / weights.numel()


def _parameters(session: Session) -> dict[str, Parameter]:
    """Returns rank 0's parameters by name, in order; other ranks may keep no part of some.
    Collective."""

    def own() -> str:
        planned = {p.name: p for bucket in session.plan.buckets for p in bucket.parameters}
        return json.dumps([planned[name].to_json() for name in session.parameters])

    described = json.loads(from_first(session.circle, own))
    return {one["name"]: parameter_of(**one) for one in described}


def _is_busy(session: Session, recorder: Recorder) -> bool:
    """Whether backward keeps a processor busy on any rank. Collective."""
    mine = median(step.busy for step in recorder.steps)
    return float(of_ranks(session.circle, [mine]).max()) > _BUSY


def _middle(steps: Tensor) -> Tensor:
    """Returns the mean over steps, without the lowest and the highest tenth."""
    count = len(steps)
    return steps.sort(0).values[count // 10 : count - count // 10].mean(0)


def samples_of(session: Session, recorder: Recorder) -> dict[str, list[Tensor]]:
    """Returns, by name, gradients that came in every watched step on every rank. Collective."""
    if not recorder.samples:
        return {}
    mine = [len(own) for own in recorder.samples.values()]
    counts = of_ranks(session.performers[0], mine).amin(0).int().tolist()
    most = max(counts)
    named = zip(recorder.samples.items(), counts)
    return {name: own[:most] for (name, own), count in named if count == most > 0}


def _row(step: Watched, names: Sequence[str]) -> list[float]:
    """Returns [around, each parameter's time, the last time]; a gradient that never came counts
    as the last."""
    last = max(step.ready.values(), default=0.0)
    return [step.around, *(step.ready.get(name, last) for name in names), last]
