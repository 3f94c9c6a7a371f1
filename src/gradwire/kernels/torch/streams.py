"""Streams and their sums in torch."""

import torch
from torch import Tensor

from gradwire.kernels.dealing import CHUNK, owners_of
from gradwire.kernels.tensors import quotient


def split_stream(
    places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor, values_out: Tensor
) -> list[int]:
    chunks = places.long() // CHUNK
    rounds = chunks // owners
    owner = (chunks + owners_of(rounds, owners, seed)) % owners
    order = owner.sort(stable=True).indices
    places_out.copy_((rounds * CHUNK + places % CHUNK)[order])
    values_out.copy_(values.detach()[order])
    counts: list[int] = torch.bincount(owner, minlength=owners).tolist()
    return counts


def flat_places(places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor) -> None:
    rounds = places.long() // CHUNK
    turn = (owner - owners_of(rounds, owners, seed)) % owners
    places_out.copy_((rounds * owners + turn) * CHUNK + places % CHUNK)


def place_stream(out: Tensor, places: Tensor, values: Tensor) -> None:
    out[places.long()] = values.detach().to(out.dtype)


_NO_SUM = -0.0  # adding it changes no value, not even -0


def merge_streams(
    n: int, places: list[Tensor], values: list[Tensor], divisor: float, places_out: Tensor,
    values_out: Tensor,
) -> int:  # fmt: skip
    total = torch.zeros(n, dtype=torch.float32, device=places_out.device)
    for place, value in zip(places, values):
        total[place.long()] += value.detach().float()
    kept = total.nonzero().flatten()
    return _write((places_out, values_out), kept, quotient(total[kept], divisor))


def _write(outs: tuple[Tensor, Tensor], places: Tensor, values: Tensor) -> int:
    count = places.numel()
    outs[0][:count] = places
    outs[1][:count] = values
    return count


def top_of_two(
    n: int,
    a_places: Tensor,
    a_values: Tensor,
    b_places: Tensor,
    b_values: Tensor,
    k: int,
    places_out: Tensor,
    values_out: Tensor,
) -> int:
    both = torch.cat([a_places, b_places]).sort().values
    union = both[both.diff(prepend=both.new_full((1,), -1)) != 0]
    total = torch.full(union.shape, _NO_SUM, dtype=torch.float32, device=union.device)
    total[torch.searchsorted(union, a_places)] += a_values.detach().float()
    total[torch.searchsorted(union, b_places)] += b_values.detach().float()
    total = torch.where(total.isnan(), torch.full_like(total, torch.nan), total)
    order = total.abs().sort(descending=True, stable=True).indices
    chosen = order[:k].sort().values
    return _write((places_out, values_out), union[chosen], total[chosen])


def contained(places: Tensor, among: Tensor, out: Tensor) -> None:
    out.copy_(torch.isin(places, among, assume_unique=True))
