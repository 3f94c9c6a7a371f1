"""gradwire: train neural networks in parallel over networks that are too slow for it.

Public names are imported when they are first used, so that importing a part costs only that part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Accordion": "gradwire.training.accordion",
    "Handle": "gradwire.training.attach",
    "LocalSteps": "gradwire.training.local_steps",
    "Plan": "gradwire.plan",
    "Strategy": "gradwire.strategy",
    "Trace": "gradwire.trace",
    "Warmup": "gradwire.warmup",
    "attach": "gradwire.tuning.attach",
    "available": "gradwire.registry",
    "ddp_kwargs": "gradwire.training.ddp",
    "detach": "gradwire.training.attached",
    "init_process_group": "gradwire.training.survivors",
    "lockstep": "gradwire.runtime.lockstep",
    "metrics": "gradwire.metrics",
    "optim": "gradwire.optim",
    "recommend": "gradwire.training.recommend",
    "record": "gradwire.training.recording",
    "register": "gradwire.families",
    "sound": "gradwire.soundness",
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 - the names are strings

if TYPE_CHECKING:
    from gradwire import metrics as metrics
    from gradwire import optim as optim
    from gradwire.families import register as register
    from gradwire.plan import Plan as Plan
    from gradwire.registry import available as available
    from gradwire.runtime.lockstep import lockstep as lockstep
    from gradwire.soundness import sound as sound
    from gradwire.strategy import Strategy as Strategy
    from gradwire.trace import Trace as Trace
    from gradwire.training.accordion import Accordion as Accordion
    from gradwire.training.attach import Handle as Handle
    from gradwire.training.attached import detach as detach
    from gradwire.training.ddp import ddp_kwargs as ddp_kwargs
    from gradwire.training.local_steps import LocalSteps as LocalSteps
    from gradwire.training.recommend import recommend as recommend
    from gradwire.training.recording import record as record
    from gradwire.training.survivors import init_process_group as init_process_group
    from gradwire.tuning.attach import attach as attach
    from gradwire.warmup import Warmup as Warmup


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradwire' has no attribute '{name}'")
    home = import_module(_HOME[name])
    return home if home.__name__ == f"gradwire.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
