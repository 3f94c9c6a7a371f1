"""The bytes that the busiest node receives, and seconds, per scheme: formulas for any world size.

d is the density of one worker's tensor, γ(k)·d that of the sum of k workers'. Values have four
bytes; COO adds a four-byte index to each. Headers and padding are not counted. Source: ZEN (Wang
et al., OSDI'25), section 2.4 and appendix B, except where a line says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

VALUE_BYTES = 4
_CHUNK = 16  # elements that `zen` gives to one owner together


def _even(workers: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Sparsity:
    """The facts about the summed tensors that the formulas need.

    Attributes:
        elements: of one worker's dense tensor.
        density: the fraction of them that is not zero, the mean over workers.
        gamma: k to the densification ratio γ(k), the density of k workers' sum over `density`.
        columns: of a tensor whose non-zeros come in whole rows; None for any other.
        skewness: n to the density of the fullest of n even ranges, over `density`.
    """

    elements: int
    density: float
    gamma: Callable[[int], float]
    columns: int | None = None
    skewness: Callable[[int], float] = _even

    @property
    def bytes(self) -> int:
        """The bytes of the dense tensor."""
        return VALUE_BYTES * self.elements

    @property
    def units(self) -> int:
        """The number of units that are zero or not as a whole: rows if non-zeros come in rows,
        otherwise elements."""
        return self.elements // (self.columns or 1)

    def union(self, workers: int) -> float:
        """Returns the density of the sum of this many workers' tensors."""
        return min(1.0, self.density * self.gamma(workers))


def entropy(density: float) -> float:
    """Returns the bits per place that an ideal code of a random support of this density needs."""
    if not 0 < density < 1:
        return 0.0
    rest = 1 - density
    return -density * math.log2(density) - rest * math.log2(rest)


# -- the schemes -------------------------------------------------------------------------------


def dense(s: Sparsity, n: int) -> float:
    """Ring all-reduce of everything: 2(n-1)/n."""
    return 2 * (n - 1) / n * s.bytes


def allgather(s: Sparsity, n: int) -> float:
    """Every node's COO goes to every other, and is summed at the end: 2(n-1)·d."""
    return 2 * (n - 1) * s.density * s.bytes


def sparcml(s: Sparsity, n: int) -> float:
    """Recursive doubling: Σ 2·γ(2^i)·d over log2 n rounds, none more expensive than dense.

    Renggli et al., SC'19. For powers of two only.
    """
    rounds = (2 * s.union(1 << i) for i in range(n.bit_length() - 1))
    return sum(min(1.0, part) for part in rounds) * s.bytes


def sparse_ps(s: Sparsity, n: int) -> float:
    """COO through the owners of even ranges: 2(n-1)/n · s(n)·(d + γ(n)·d), s the skewness.

    The busiest range of the sum is never more than full, which bounds the second term.
    """
    skewness = s.skewness(n)
    pull = min(1.0, skewness * s.union(n))
    return 2 * (n - 1) / n * (skewness * s.density + pull) * s.bytes


def balanced_coo(s: Sparsity, n: int) -> float:
    """COO through owners with even loads: 2(n-1)/n · (d + γ(n)·d)."""
    return 2 * (n - 1) / n * (s.density + s.union(n)) * s.bytes


def zen_paper(s: Sparsity, n: int) -> float:
    """Even owners, COO there, a bitmap of all places back: (n-1)/n · (2d + γ(n)·d + 1/32)."""
    return (n - 1) / n * (2 * s.density + s.union(n) + 1 / 32) * s.bytes


def zen(s: Sparsity, n: int) -> float:
    """Even owners, places in an ideal code: (n-1)/n · (d + γ(n)·d) and entropies.

    Entropies are of elements or, if non-zeros come in rows, of the pieces that owners get of rows.
    """
    one, all_ = s.density, s.union(n)
    pieces = s.elements / min(_CHUNK, s.columns or 1)
    places = pieces * (entropy(one) + entropy(all_)) / 8
    return (n - 1) / n * ((one + all_) * s.bytes + places)


def columns(s: Sparsity, n: int) -> float:
    """Each owner has a stripe of columns; row numbers go to all nodes, and none back. Rows only.

    Of each worker's rows, a = γ(n)·d - γ(n-1)·d are no other's: they go to all nodes as they are.
    (n-1)/n · ((d - a) + (γ(n)·d - n·a)) + (n-1)·a + (n-1)·d/D, with D columns; if n does not
    divide D, the widest stripe is the busiest. Two workers swap their rows.
    """
    assert s.columns is not None
    stripe = math.ceil(s.columns / n) / s.columns
    single = s.density if n <= 2 else s.union(n) - s.union(n - 1)
    shared = max(0.0, s.union(n) - n * single)
    values = (n - 1) * (stripe * (s.density - single) + single) + (1 - stripe) * shared
    return (values + (n - 1) * s.density / s.columns) * s.bytes


def union(s: Sparsity, n: int) -> float:
    """All-reduce of a bitmap, then of the union's values: 2(n-1)/n · (γ(n)·d + bitmap)."""
    bitmap = s.units / 8
    return 2 * (n - 1) / n * (s.union(n) * s.bytes + bitmap)


def reference(s: Sparsity, n: int) -> float:
    """The bytes that a node must receive on average: d + (n-2)/n·γ(n)·d of values, and two
    supports' entropy.

    A sum of c contributions needs c-1 transfers of a value to be known on one node, and n-1 more
    to be known on all; places cost as much as an ideal code of a random support.
    """
    one, all_ = s.density, s.union(n)
    values = s.bytes * (one + (n - 2) / n * all_)
    return values + s.units * (n - 1) / n * (entropy(one) + entropy(all_)) / 8


SCHEMES: dict[str, Callable[[Sparsity, int], float]] = {
    scheme.__name__: scheme
    for scheme in (
        dense, allgather, sparcml, sparse_ps, balanced_coo, zen_paper, union, zen, columns,
        reference,
    )
}  # fmt: skip
"""Every scheme by name; the last is the reference."""


def volumes(sparsity: Sparsity, workers: int) -> dict[str, float]:
    """Returns the bytes that the busiest node receives under each scheme; for one worker all are
    0.

    `columns` is left out for tensors without rows, `sparcml` if the number of workers is not a
    power of two.
    """
    names = set(SCHEMES)
    if sparsity.columns is None:
        names.remove("columns")
    if workers & (workers - 1):
        names.remove("sparcml")
    return {name: SCHEMES[name](sparsity, workers) for name in SCHEMES if name in names}


# -- time --------------------------------------------------------------------------------------


def _around(n: int) -> int:
    """The waits in a ring: every step waits for the one before."""
    return 2 * (n - 1)


def _by_owners(n: int) -> int:
    """The waits to owners and back, each with sizes sent first; messages to all go out at once."""
    return 4


WAITS: dict[str, Callable[[int], int]] = {
    "dense": _around,
    "allgather": lambda n: 2,
    "sparcml": lambda n: 2 * (n.bit_length() - 1),
    "sparse_ps": _by_owners,
    "balanced_coo": _by_owners,
    "zen_paper": _by_owners,
    "union": lambda n: 2 * _around(n),
    "zen": _by_owners,
    "columns": lambda n: 4 if n > 2 else 3,
    "reference": lambda n: 2 if n > 2 else 1,
}
"""The number of a node's consecutive waits for others, including for sizes that are sent before
data."""


def times(
    sparsity: Sparsity, workers: int, bytes_per_second: float, latency_seconds: float
) -> dict[str, float]:
    """Returns seconds by scheme: the busiest node's bytes at full rate, and every wait's latency.

    Local work takes no time here; nor does a switch that all share.
    """
    if workers == 1:
        return dict.fromkeys(volumes(sparsity, 1), 0.0)
    return {
        scheme: count / bytes_per_second + WAITS[scheme](workers) * latency_seconds
        for scheme, count in volumes(sparsity, workers).items()
    }
