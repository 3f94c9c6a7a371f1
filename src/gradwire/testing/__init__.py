"""Tools to test your own members, and to rehearse what a job does when a machine is lost.

    check(MyCompressor())                            tries every law that applies to it
    workers = Workers(plan, 8)                       N ranks of one plan in this process
    averages = workers.exchange(gradients)           what every rank gets, by name
    inject(handle, Die(at=3), rank=1)                rank 1 dies at its fourth move

Nothing else in the package imports this one; importing it loads torch.
"""

from gradwire.testing.check import check
from gradwire.testing.faulty import (
    Corrupt,
    Die,
    Fail,
    Fault,
    FaultyPerformer,
    Jitter,
    Stall,
    inject,
)
from gradwire.testing.workers import Workers

__all__ = [
    "Corrupt",
    "Die",
    "Fail",
    "Fault",
    "FaultyPerformer",
    "Jitter",
    "Stall",
    "Workers",
    "check",
    "inject",
]
