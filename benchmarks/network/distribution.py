"""The exact load of the fullest link with ideal hashing, without sampling.

A leaf with n equal flows and s uplinks is a throw of n balls into s bins. Poisson counts of mean
n / s, given that they sum to n, are such a throw, so

    P(no bin has more than k) = [bins of at most k sum to n] / [all bins sum to n]

is computed from sums of s equal and independent counts. Leaves, up and down, are treated as
independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flow, Flows
from gradwire.network.routing.scheme import Crossing

Chances = NDArray[np.float64]


class Distribution(NamedTuple):
    """The distribution of the most flows on a link: cdf[k] is the chance of k or fewer."""

    cdf: Chances

    def quantile(self, chance: float) -> int:
        """Returns the fewest flows that are not exceeded with this chance, 0 to 1."""
        return int(np.searchsorted(self.cdf, chance - 1e-12))


def fullest_by_hash(
    flows: Flows | Iterable[Flow | tuple[int, ...]], topology: Fabric
) -> Distribution:
    """Returns the distribution for flows of one size that start together, in a leaf-spine whose
    links are alike. Raises NetworkError for others: use `samples`."""
    given = Flows.of(flows)
    given.refuse_beyond(topology.hosts)
    crossing = Crossing(topology, given)
    crossing.refuse_unequal()
    if topology.cores or len(set(topology.rates.tolist())) > 1:
        raise NetworkError(
            "the exact distribution is of two tiers with links of one rate; got "
            f"{topology.pods} pods and {len(set(topology.rates.tolist()))} rates. Use samples()."
        )
    ways = len(topology.uplinks)
    counts = np.concatenate([
        np.bincount(leaf, minlength=1) for leaf in (crossing.source, crossing.target)
    ])  # fmt: skip
    balls, leaves = np.unique(counts[counts > 0], return_counts=True)
    most = int(balls.max(initial=0))
    cdf = [0.0] * -(-most // ways) or [1.0]
    while cdf[-1] < 1 - 1e-12 and len(cdf) <= most:
        k = len(cdf)
        chances = (at_most(int(n), ways, k) ** int(m) for n, m in zip(balls, leaves))
        cdf.append(math.prod(chances))
    return Distribution(np.array(cdf))


def at_most(balls: int, bins: int, k: int) -> float:
    """Returns the chance that no bin has more than k."""
    if k >= balls:
        return 1.0
    if k * bins < balls:
        return 0.0
    mean, number = balls / bins, np.arange(k + 1)
    gamma = np.array([math.lgamma(i + 1) for i in number])
    law = np.exp(number * math.log(mean) - mean - gamma)
    length = 1 << (k * bins).bit_length()  # so long that no sum wraps around
    summed = np.fft.irfft(np.fft.rfft(law, length) ** bins, length)
    all_bins = math.exp(balls * math.log(balls) - balls - math.lgamma(balls + 1))
    return min(max(float(summed[balls]) / all_bins, 0.0), 1.0)
