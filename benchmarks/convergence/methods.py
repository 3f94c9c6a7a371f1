"""The methods that compete: how the gradient travels, and what keeps the momentum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from rivals import DeMo, Dion, SparseLoCo, ZeroOneAdam
from task import Settings
from torch import nn
from torch.optim import Optimizer

from gradwire.optim import SGD, AdamW, Muon, OneBitAdam
from gradwire.strategy import Strategy
from gradwire.testing import Workers
from gradwire.warmup import PAPER, Warmup

BETAS = 0.9, 0.99
"""AdamW's betas, for runs of thousands of steps, not of hundreds of thousands."""

MOMENTUM = 0.95
"""Muon's momentum."""

MakeOptimizer = Callable[[nn.Module, Settings, int], Optimizer]
"""(model, settings, steps of the warm-up) -> the optimizer that steps with the averages."""


def _muon(model: nn.Module, settings: Settings, **options: Any) -> Optimizer:
    return Muon.of(
        model, lr=settings.rate, weight_decay=settings.weight_decay, momentum=MOMENTUM,
        betas=BETAS, **options,
    )  # fmt: skip


def momentum_on_average(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """Torch's own optimizers, for averages that are gradients."""
    if settings.optimizer == "muon":
        return _muon(model, settings, momentum_kept=False)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(
            model.parameters(), settings.rate, betas=BETAS, weight_decay=settings.weight_decay
        )
    return torch.optim.SGD(
        model.parameters(), settings.rate, settings.momentum, weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )  # fmt: skip


def momentum_kept(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """For averages that contain the momentum: only weight decay still goes through one."""
    if settings.optimizer != "sgd":
        raise SystemExit(
            "momentum correction is for SGD's momentum; this task has "
            f"{settings.optimizer}. Take methods with ef."
        )
    return SGD(
        model.parameters(), settings.rate, settings.momentum, weight_decay=settings.weight_decay,
        nesterov=settings.nesterov, momentum_kept=True,
    )  # fmt: skip


def momentum_averaged(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """For averages that are a momentum into which gradients go times 1 - m: SGD with all of it
    divided by that."""
    entered = 1 - settings.momentum
    optimizer = torch.optim.SGD(
        model.parameters(), settings.rate, weight_decay=settings.weight_decay / entered
    )

    def enlarge(*_: object) -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(entered)

    optimizer.register_step_pre_hook(enlarge)
    return optimizer


def variance_frozen(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """For averages that are the momentum: AdamW whose variance is learnt in the warm-up."""
    return OneBitAdam(
        model.parameters(), settings.rate, betas=BETAS, weight_decay=settings.weight_decay,
        freeze_step=warm_up, momentum_kept=True,
    )  # fmt: skip


def moments_kept(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """For averages that are AdamW's steps, without learning rate and weight decay."""
    return AdamW(
        model.parameters(), settings.rate, betas=BETAS, weight_decay=settings.weight_decay,
        moments_kept=True,
    )  # fmt: skip


def muon_kept(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """For averages that are Muon's steps, and AdamW's for the rest."""
    return _muon(model, settings, momentum_kept=True)


def muon_in_turns(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """Hidden matrices take an orthogonal step every fourth step only."""
    return _muon(model, settings, turns=4)


@dataclass(frozen=True)
class Method:
    """One contestant.

    Attributes:
        name: on the command line and in tables.
        text: its strategy; {density}, {momentum} and {nesterov} stand for the run's.
        densities: of the warm-up, or strategies' texts, before the run's own; empty: no warm-up.
        warm_up: one step in this many is warm-up, if not as in the task.
        whole: whether the model is one tensor, so that selection is over all of it.
        clips: "average" after the exchange, "local" each worker's own before it, "nothing".
        follows_rate: whether residuals keep the learning rate they came with, as by `attach`.
        optimizer: steps with the averages.
        workers: performs the exchange; negative controls and rivals have their own.
        every: steps that each worker takes alone, with its own optimizer, before the exchange of
            how far it came (`gradwire.LocalSteps`, whose outer step is the mean).
        delay: steps that each worker takes until the exchange is over.
        critical: as many times the density in critical phases (`gradwire.Accordion`); 0: none.
    """

    name: str
    text: str
    densities: tuple[float | str, ...] = ()
    warm_up: int | None = None
    whole: bool = False
    clips: Literal["average", "local", "nothing"] = "local"
    follows_rate: bool = True
    optimizer: MakeOptimizer = momentum_on_average
    workers: Callable[..., Any] = Workers
    every: int = 1
    delay: int = 0
    critical: float = 0.0

    @property
    def keeps_moments(self) -> bool:
        """Whether residuals are in the unit of an optimizer's steps."""
        return self.optimizer in (moments_kept, muon_kept)

    def strategy(self, density: float, settings: Settings) -> Strategy:
        facts = {"momentum": settings.momentum, "nesterov": settings.nesterov}
        return Strategy.parse(self.text.format(density=density, **facts))

    def make_optimizer(self, model: nn.Module, settings: Settings, steps: int) -> Optimizer:
        """For a run of this many steps."""
        warmup = self.warmup(settings, steps)
        return self.optimizer(model, settings, warmup.steps if warmup else 0)

    def warmup(self, settings: Settings, steps: int) -> Warmup | None:
        """For a run of this many steps."""
        length = max(steps // (self.warm_up or settings.warm_up), len(self.densities))
        return Warmup(length, self.densities) if self.densities else None


DENSE = Method("dense", "none | allreduce", clips="average")
DGC = Method(
    "dgc", "topk({density})+dgc(momentum={momentum}, nesterov={nesterov}) | allgather",
    densities=PAPER, optimizer=momentum_kept,
)  # fmt: skip
EF_TOPK = Method("ef-topk", "topk({density})+ef | allgather")
GTOPK = Method("gtopk", "topk({density})+ef | gtopk", densities=PAPER)
MERGED = Method(
    "gtopk-butterfly", 'topk({density})+ef | gtopk(variant="butterfly")', densities=PAPER
)
METHODS = (
    DENSE,
    DGC,
    EF_TOPK,
    GTOPK,
    # k elements arrive in all, not from each worker, so residuals are as many times older.
    MERGED,
    replace(MERGED, name="gtopk-butterfly-long", warm_up=5),
    # As its authors run it: a part of the sum is lost, selection is over the model, the average is
    # clipped, and the first of 141 epochs has four times the density of 0.1 %.
    Method(
        "gtopk-published", 'topk({density})+ef | gtopk(variant="tree")', whole=True,
        clips="average", follows_rate=False, densities=(0.004,), warm_up=141,
    ),
    Method("ef-sign", "sign(scaled=True)+ef | allgather"),
    Method("onebit", "onebit+ef | allgather"),
    Method("qsgd", "qsgd(4) | allgather"),
    Method("powersgd", "none | powersgd(4)"),
)  # fmt: skip
"""The methods in the full form's table."""

DENSE_LOCAL = Method("dense-local-clip", "none | allreduce")
"""Runs beside the others on tasks that clip, to show clipping's part of a difference."""

_ADAM = f"{{}}+adam(beta1={BETAS[0]}, beta2={BETAS[1]}) | {{}}"
_MUON = f"{{}}+muon(momentum={MOMENTUM}, beta1={BETAS[0]}, beta2={BETAS[1]}) | {{}}"
_REST = ', rest="{} | alltoall"'
MORE = (
    # Residuals are applied at the learning rate of the step in which they are sent, as published.
    *(replace(m, name=f"{m.name}-late", follows_rate=False) for m in (DGC, EF_TOPK, MERGED)),
    # The effect of each of DGC's parts: `ef-topk-warm` has all but momentum correction.
    replace(DGC, name="dgc-nowarm", densities=()),
    replace(DGC, name="dgc-noclip", clips="nothing"),
    Method(
        "dgc-nomask",
        "topk({density})+dgc(momentum={momentum}, nesterov={nesterov}, mask=False) | allgather",
        densities=PAPER, optimizer=momentum_kept,
    ),
    Method(
        "dgc-gtopk", "topk({density})+dgc(momentum={momentum}, nesterov={nesterov}) | gtopk",
        densities=PAPER, optimizer=momentum_kept,
    ),
    *(
        replace(GTOPK, name=f"gtopk-{n}", text=f"topk({{density}})+ef | gtopk(breadth={n})")
        for n in (2, 4)
    ),
    # As MergeComp's single bucket: vectors are compressed, too, and matrices share one selection.
    *(replace(m, name=f"{m.name}-whole", whole=True) for m in (DGC, EF_TOPK)),
    replace(EF_TOPK, name="accordion", critical=10.0),
    Method("ef-topk-warm", "topk({density})+ef | allgather", densities=PAPER),
    Method("ef-randk", "randk({density})+ef | allreduce", densities=PAPER),
    Method("fp16", "fp16 | allreduce"),
    Method("bf16", "bf16 | allreduce"),
    Method("int8", "int8 | allgather"),
    Method("fp8", "fp8 | allgather"),
    Method("natural", "natural | allgather"),
    Method("mxfp4", 'mx("e2m1") | alltoall'),
    Method("mxfp4-ef", 'mx("e2m1")+ef | alltoall'),
    Method("mxfp6", 'mx("e2m3") | alltoall'),
    Method("mxfp8", 'mx("e4m3") | alltoall'),
    Method("thc", "none | thc(4)"),
    Method("thc-2", "none | thc(2)"),
    Method("recode-mxfp4", 'none | recode("mx(\'e2m1\')")'),
    Method("recode-qsgd", 'none | recode("qsgd(4)")'),
    Method("eb", "eb(0.001) | allgather"),
    Method("terngrad", "terngrad | allgather"),
    Method("onebit-alltoall", "onebit+ef | alltoall"),
    Method("ef-sign-alltoall", "sign(scaled=True)+ef | alltoall"),
    Method("qsgd-alltoall", "qsgd(4) | alltoall"),
    Method("topk-zen", "topk({density})+ef | zen"),
    Method("ef21-topk", "topk({density})+ef21 | allgather"),
    Method(
        "ef21-momentum", "topk({density})+ef21(momentum={momentum}) | allgather",
        optimizer=momentum_averaged,
    ),
    Method("sign", "sign | vote"),
    *(
        Method(f"adam-{name}-{collective}", _ADAM.format(text, collective), optimizer=moments_kept)
        for name, text in (
            ("none", "none"), ("1", "lloyd(1)"), ("1-half", "lloyd(1, turns=2)"),
            ("2", "lloyd(2)"), ("2-half", "lloyd(2, turns=2)"),
        )
        for collective in ("allgather", "alltoall")
    ),
    *(
        Method(f"muon-{name}-{collective}", _MUON.format(text, collective), optimizer=muon_kept)
        for name, text in (
            ("none", "none"), ("1", "lloyd(1)"), ("1-half", "lloyd(1, turns=2)"),
            ("1-quarter", "lloyd(1, turns=4)"), ("2", "lloyd(2)"), ("2-half", "lloyd(2, turns=2)"),
        )
        for collective in ("allgather", "alltoall")
    ),
    *(
        Method(
            f"muon-1-{name}-alltoall-2",
            _MUON.format(f"lloyd(1{turns})", f'alltoall(means="lloyd(2{turns})")'),
            optimizer=muon_kept,
        )
        for name, turns in (("whole", ""), ("half", ", turns=2"), ("quarter", ", turns=4"))
    ),
    # Coarse methods begin with a finer one.
    *(
        Method(
            f"adam-1-warm-{name}", _ADAM.format("lloyd(1)", collective),
            densities=("lloyd(2) | allgather",), warm_up=10, optimizer=moments_kept,
        )
        for name, collective in (
            ("allgather", "allgather"), ("alltoall-2", 'alltoall(means="lloyd(2)")'),
            ("alltoall-4", 'alltoall(means="qsgd(4)")'),
        )
    ),
    # Hidden matrices take turns; all others, the rest, have a strategy of their own.
    *(
        Method(
            f"muon-{name}",
            f"{text}+muon({turns}momentum={MOMENTUM}, beta1={BETAS[0]}, beta2={BETAS[1]}{rest}) "
            "| alltoall",
            optimizer=muon_kept,
        )
        for name, text, turns, rest in (
            ("1-quarter-rest-4", "lloyd(1, turns=4)", "", _REST.format("qsgd(4)")),
            ("2-turns-4-rest-4", "lloyd(2)", "turns=4, ", _REST.format("qsgd(4)")),
            ("2-turns-8-rest-4", "lloyd(2)", "turns=8, ", _REST.format("qsgd(4)")),
            ("1-turns-4-rest-4", "lloyd(1)", "turns=4, ", _REST.format("qsgd(4)")),
            ("2-turns-4-rest-1", "lloyd(2)", "turns=4, ", _REST.format("lloyd(1, turns=2)")),
            ("2-turns-4", "lloyd(2)", "turns=4, ", ""),
        )
    ),
    Method(
        "topk-adam", f"topk({{density}})+shared_momentum({BETAS[0]}) | allgather",
        densities=(1.0,), warm_up=5, optimizer=variance_frozen,
    ),
    Method(
        "onebit-adam", f"onebit+shared_momentum({BETAS[0]}) | alltoall",
        densities=(1.0,), warm_up=5, optimizer=variance_frozen,
    ),
)  # fmt: skip
"""Methods that run on request, by name."""

LOCAL = (
    *(
        Method(f"local-{every}-{name}-{collective}", f"{text} | {collective}", every=every)
        for every in (2, 4, 8)
        for name, text in (
            ("none", "none"), ("2", "lloyd(2)+ef"), ("1", "lloyd(1)+ef"),
            ("1-half", "lloyd(1, turns=2)+ef"),
            ("1-quarter", "lloyd(1, turns=4)+ef"), ("topk", "topk({density})+ef"),
        )
        for collective in ("allgather", "alltoall")
        if not (name == "topk" and collective == "alltoall")
    ),
    *(
        Method(f"local-8-1-delay-{delay}", "lloyd(1)+ef | alltoall", every=8, delay=delay)
        for delay in (1, 4, 8)
    ),
    *(
        Method(
            f"local-{every}-{bits}-turns-4", f"lloyd({bits})+ef | alltoall", every=every,
            optimizer=muon_in_turns,
        )
        for every, bits in ((8, 1), (12, 1), (16, 1), (16, 2))
    ),
)  # fmt: skip
"""Local steps, also on request."""

_DENSE = Method("", "none | allreduce", follows_rate=False)
_DION = f"none+muon(momentum={MOMENTUM}, beta1={BETAS[0]}, beta2={BETAS[1]}{{}}) | allgather"
RIVALS = (
    *(
        Method(
            f"dion-{rank}{name}", _DION.format(f', rest="{rest}"'), follows_rate=False,
            optimizer=muon_kept, workers=partial(Dion, rank=rank, momentum=MOMENTUM),
        )
        for name, rest in (("", "none | allreduce"), ("-rest-4", "qsgd(4) | alltoall"))
        for rank in (2, 4, 12, 24)
    ),
    *(
        replace(
            _DENSE, name=f"demo-{waves}", optimizer=moments_kept,
            workers=partial(DeMo, share=waves / 4096),
        )
        for waves in (8, 32, 128)
    ),
    *(
        replace(
            _DENSE, name=f"sparseloco-{every}{name}", every=every,
            workers=partial(SparseLoCo, of_senders=bool(name)),
        )
        for every in (4, 15)
        for name in ("", "-senders")
    ),
    Method(
        "zero-one-adam", _ADAM.format("none", "allgather"), optimizer=moments_kept,
        workers=partial(ZeroOneAdam, betas=BETAS),
    ),
)  # fmt: skip
"""Methods that others have published (`rivals`), also on request. The number is Dion's rank,
DeMo's waves, and SparseLoCo's local steps; "senders": its mean is over only those that sent an
element."""

BY_NAME = {method.name: method for method in (*METHODS, DENSE_LOCAL, *MORE, *LOCAL, *RIVALS)}
