"""Inputs for the tests of streams: random places and damaged lists."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from samples import DISTRIBUTIONS, DTYPES, draw

Stream = tuple[torch.Tensor, torch.Tensor]
KINDS = st.sampled_from(sorted(DISTRIBUTIONS))
DTYPE = st.sampled_from(DTYPES)
SIZES = st.one_of(st.integers(0, 300), st.integers(4090, 4100), st.integers(65_530, 65_540))
DENSITIES = st.sampled_from([0.0, 0.0003, 0.003, 0.05, 0.3, 1.0])
FILL = 7


def stream(
    n: int, density: float, seed: int, dtype: torch.dtype = torch.float32, kind: str = "normal"
) -> Stream:
    """A stream at odd addresses: a third is one run; it often has the first and the last place."""
    g = torch.Generator().manual_seed(seed)
    chosen = torch.rand(n, generator=g) < density
    if n > 20 and density > 0:
        begin = int(torch.randint(0, n, (1,), generator=g))
        chosen[begin : begin + int(n * density) // 3 + 1] = True
        chosen[0] |= bool(seed & 1)
        chosen[-1] |= bool(seed & 2)
    places = chosen.nonzero().flatten().int()
    held = torch.empty(places.numel() + 1, dtype=torch.int32)[1:].copy_(places)
    return held, draw(kind, held.numel(), seed, dtype, shift=1)


def outputs(k: int, dtype: torch.dtype) -> Stream:
    """Outputs filled with FILL, at odd addresses."""
    places = torch.full((k + 1,), FILL, dtype=torch.int32)[1:]
    return places, torch.full((k + 1,), FILL, dtype=dtype)[1:]


def untouched(*tensors: torch.Tensor) -> bool:
    return all(bool((t == FILL).all()) for t in tensors)


DAMAGE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "past the end": lambda p, n: torch.cat([p[:-1], p.new_tensor([n])]),
    "far past the end": lambda p, n: torch.cat([p[:-1], p.new_tensor([2**31 - 1])]),
    "negative": lambda p, n: torch.cat([p.new_tensor([-1]), p[1:]]),
    "least": lambda p, n: torch.cat([p.new_tensor([-(2**31)]), p[1:]]),
    "twice": lambda p, n: torch.cat([p[:1], p[:1], p[2:]]),
    "falling": lambda p, n: p.flip(0),
}
