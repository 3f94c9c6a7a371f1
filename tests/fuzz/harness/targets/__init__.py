"""Every function that reaches the extension, family by family."""

from harness.targets import codes, network, planner, selection, streams, sums
from harness.targets._register import TARGETS

__all__ = ["TARGETS", "codes", "network", "planner", "selection", "streams", "sums"]
