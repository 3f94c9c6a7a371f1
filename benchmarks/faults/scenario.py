"""A scenario: a job, and what goes wrong with it, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

IN_A_STEP = ("forward", "backward", "hook", "lane", "optimizer")
"""Points of a step, in their order. hook: a parameter's, after its gradient is there; lane: in the
thread that exchanges buckets."""

KINDS: dict[str, tuple[str, ...]] = {
    "killed": (*IN_A_STEP, "save"),
    "raises": IN_A_STEP,
    "misses a backward": ("forward",),
    "stopped briefly": (*IN_A_STEP, "save"),
    "stopped for long": (*IN_A_STEP, "save"),
    "slow": ("forward", "lane"),
    "link cut": ("forward", "lane"),
    "link cut briefly": ("forward", "lane"),
    "link slow": ("forward", "lane"),
    "switch cut": ("forward", "lane"),
    "flips what it sends": ("lane",),
    "flips what arrives": ("lane",),
    "no memory": ("attach", "lane"),
    "clock set back": ("forward",),
    "not finite": ("forward",),
    "disk full": ("save",),
    "other plan": ("attach",),
    "other model": ("attach",),
    "other dtype": ("attach",),
    "other seed": ("attach",),
    "other version": ("attach",),
    "other clipping": ("attach",),
    "late": ("attach",),
    "never attaches": ("attach",),
}
"""What can go wrong, and at which points of a job."""

PAIRS = [(kind, where) for kind, points in KINDS.items() for where in points]

RATE = "1gbit"
"""Of the hosts' links."""

NEEDS_LINKS = {"link cut", "link cut briefly", "link slow", "switch cut"}
NEEDS_THE_TIMEOUT = {"stopped for long", "link cut", "switch cut"}
"""No connection closes: the others notice only when their timeout is over."""

HARMLESS = {
    "stopped briefly", "slow", "link cut briefly", "link slow", "clock set back", "disk full",
    "late",
}  # fmt: skip
"""All ranks must end with the weights of an undisturbed run."""

ALIKE = {"not finite", "flips what it sends"}
"""All ranks must end with the same weights, whatever these are, or with an error each."""

STRATEGIES = (
    ("none | allreduce", "adamw"),
    ("bf16 | allreduce", "adamw"),
    ("bf16+adam | allreduce", "adamw"),
    ("int8+ef | alltoall", "sgd"),
    ("topk(0.1)+ef | allgather", "sgd"),
    ("topk(0.1)+ef | zen", "sgd"),
    ("dgc(0.1) | allgather", "sgd"),
    ("dgc(0.1) | gtopk", "sgd"),
    ("sign(scaled=True)+ef | alltoall", "sgd"),
    ("topk(0.1)+ef21 | allgather", "sgd"),
    ("powersgd(2)", "sgd"),
    ("lloyd(2)+adam | alltoall", "adamw"),
    ('lloyd(2)+muon(turns=2, rest="qsgd(4) | alltoall") | alltoall', "muon"),
)
"""Strategies, each with the optimizer of its jobs. All but `ef21` are sound with it."""

LOCAL = ("none | allreduce", "lloyd(1)+ef | alltoall")
"""Strategies of local steps."""


@dataclass(frozen=True)
class Job:
    """What is trained, and how.

    front: "plain", "ddp", "fsdp", "local" (steps), or "auto" (plain, with the plan to be found).
    micro: backward passes to a step; all but the last inside no_sync. precision: "fp32", "bf16"
    (autocast), or "scaler" (a GradScaler). store: "file", or "tcp", which rank 0 hosts. large:
    whether messages travel as large ones do.
    """

    front: str
    strategy: str
    optimizer: str
    lanes: int
    micro: int
    precision: str
    store: str
    large: bool = False

    @property
    def steps(self) -> int:
        """The steps of an undisturbed run; "auto" finds its plan in most of them."""
        return {"auto": 60, "local": 10}.get(self.front, 6)

    @property
    def last_step(self) -> int:
        """The last step in which something may go wrong: weights are compared after it."""
        return self.steps - (5 if self.front == "local" else 2)


@dataclass(frozen=True)
class Scenario:
    """A job of `world` ranks; from `step` on, something goes wrong with `rank` at one point."""

    seed: int
    world: int
    kind: str
    where: str
    rank: int
    step: int
    job: Job

    @property
    def timeout_seconds(self) -> float:
        """The timeout that the job gives to `attach`, and to its default group."""
        return 8.0 if self.kind in NEEDS_THE_TIMEOUT else 20.0

    @property
    def resumes(self) -> bool:
        """Whether all ranks are started again, from their last checkpoint, once all have ended."""
        # The last checkpoints of these may differ from those of an undisturbed run.
        others = HARMLESS | ALIKE | {"misses a backward", "flips what arrives"}
        is_over = self.kind not in others and self.where != "attach"
        return is_over and self.job.front not in ("fsdp", "auto")

    def __str__(self) -> str:
        job = self.job
        place = f"rank {self.rank} of {self.world}, {self.where}, step {self.step}"
        return (
            f"{self.seed}: {self.kind} ({place}); {job.front}, {job.strategy}, {job.optimizer}, "
            f"{job.lanes} lanes, {job.micro} backward, {job.precision}, {job.store}"
            f"{', as large' * job.large}"
        )


def scenario(seed: int) -> Scenario:
    """Returns the scenario of a seed. As many seeds in a row as there are pairs of kinds and
    points have each pair once."""
    kind, where = PAIRS[seed % len(PAIRS)]
    dice = random.Random(seed)
    front = _drawn(dice, ("plain", "plain", "ddp", "ddp", "fsdp", "local", "auto"),
                   lambda own: _fits(own, kind, where))  # fmt: skip
    world = dice.choice((2, 4) if front == "fsdp" else (2, 3, 4))
    if front not in ("auto", "fsdp") and dice.random() < 0.1:
        world = dice.randint(5, 8)
    is_plain = front in ("plain", "ddp")
    strategy, optimizer = _drawn(dice, STRATEGIES, lambda own: front != "fsdp" or own[1] != "muon")
    if front == "local":
        strategy, optimizer = dice.choice(LOCAL), "sgd"
    precision = dice.choice(("fp32", "fp32", "bf16", "scaler")) if is_plain else "fp32"
    job = Job(
        front, strategy, optimizer, lanes=dice.choice((1, 2)),
        micro=dice.choice((1, 1, 2)) if is_plain or front == "fsdp" else 1,
        precision=precision, store=dice.choice(("file", "tcp")),
    )  # fmt: skip
    step = dice.randint(2, 3 if where == "save" else job.last_step)  # a last one is not missed
    own = Scenario(seed, world, kind, where, dice.randrange(world), step, job)
    return replace(own, job=replace(job, large=dice.random() < 0.5))


def _drawn(dice: random.Random, values: tuple[Any, ...], fits: Callable[[Any], bool]) -> Any:
    return dice.choice([value for value in values if fits(value)])


def _fits(front: str, kind: str, where: str) -> bool:
    """Whether something can go wrong with such a job.

    A checkpoint of shards is torch's own, and a job that looks for its plan saves none. Local
    steps have no gradients that others see, and no clipping.
    """
    if where == "save" and front in ("fsdp", "auto"):
        return False
    if kind in ("not finite", "other clipping", "misses a backward") and front == "local":
        return False
    if kind in ("other model", "other dtype") and front == "ddp":  # it compares them itself
        return False
    if kind == "misses a backward" and front == "fsdp":  # torch's own gathers would go astray
        return False
    return not (where == "attach" and front == "auto")
