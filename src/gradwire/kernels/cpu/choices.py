"""Choices of options by the extension."""

from itertools import pairwise

from torch import Tensor

from gradwire.kernels.cpu.schedule import address_of, numbers_of
from gradwire.kernels.jobs import Best, Jobs, Machine
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer

ROUNDS = 300
"""Rounds that improve the weights of the bound; more gain little."""


def search_options(jobs: Jobs, machine: Machine, start: Tensor, limit: float, seed: int) -> Best:
    choice = start.clone()
    seconds, bound, evaluations = chosen.core.search_options(
        address_of(jobs), numbers_of(machine), limit, seed % 2**64, ROUNDS, pointer(choice)
    )
    return Best(choice, seconds, bound, evaluations)


def exhaust_options(jobs: Jobs, machine: Machine, start: Tensor) -> Best:
    choice = start.clone()
    seconds, begun = chosen.core.exhaust_options(
        address_of(jobs), numbers_of(machine), pointer(choice)
    )
    return Best(choice, seconds, seconds, begun / max(1, len(jobs)))


def lower_bound(jobs: Jobs, machine: Machine) -> float:
    return chosen.core.lower_bound(address_of(jobs), numbers_of(machine), ROUNDS)


def undominated(jobs: Jobs) -> list[int]:
    begins = chosen.core.undominated(address_of(jobs))
    return [end - begin for begin, end in pairwise(begins)]
