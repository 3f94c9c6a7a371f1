"""Streams in torch."""

import torch
from torch import Tensor

from gradwire.kernels.dealing import CHUNK, owners_of


def split_stream(
    places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor, values_out: Tensor
) -> list[int]:
    chunks = places.long() // CHUNK
    rounds = chunks // owners
    owner = (chunks + owners_of(rounds, owners, seed)) % owners
    order = owner.sort(stable=True).indices
    places_out.copy_((rounds * CHUNK + places % CHUNK)[order])
    values_out.copy_(values[order])
    counts: list[int] = torch.bincount(owner, minlength=owners).tolist()
    return counts


def flat_places(places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor) -> None:
    rounds = places.long() // CHUNK
    turn = (owner - owners_of(rounds, owners, seed)) % owners
    places_out.copy_((rounds * owners + turn) * CHUNK + places % CHUNK)


def place_stream(out: Tensor, places: Tensor, values: Tensor) -> None:
    out[places.long()] = values.to(out.dtype)
