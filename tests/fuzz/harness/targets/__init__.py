"""Every function that reaches the extension, family by family."""

from harness.targets import adam, codes, network, planner, selection, streams, sums
from harness.targets._register import TARGETS

__all__ = ["TARGETS", "adam", "codes", "network", "planner", "selection", "streams", "sums"]
