"""The plans that published planners make for a profile, with the compressor that suits them all.

None runs as its authors wrote it (gradwire.planner.baselines says what differs): each plans with
the costs that were measured here, so that only the planning is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.plan import Plan
from gradwire.planner.candidates import BF16, FP32, Algorithm
from gradwire.planner.choose import choose
from gradwire.planner.profile import Profile

TOPK = "topk(0.01)+ef | allgather"
PUBLISHED: dict[str, tuple[Algorithm, int]] = {  # how, and in how many groups at most
    "MergeComp": ("mergecomp", 2),
    "MergeComp, 3 groups": ("mergecomp", 3),
    "HiPress": ("hipress", 2),
    "BytePS, 64 KiB": ("byteps", 2),
    "ByteComp, Algorithm 1": ("bytecomp", 2),
}
DENSE = {"tuned fp32": FP32, "tuned bf16": BF16}


def plans_of(
    profile: Profile, compressor: str = TOPK, paths: Sequence[str] = ()
) -> dict[str, Plan]:
    """Returns plans by name. compressor: a strategy; ByteComp chooses among it and paths."""
    found = dict[str, Plan]()
    for name, (how, most) in PUBLISHED.items():
        options = [compressor, *(paths if how == "bytecomp" else ())]
        found[name] = choose(profile, options, algorithm=how, groups=most).best.plan
    return found | {name: choose(profile, [text]).best.plan for name, text in DENSE.items()}
