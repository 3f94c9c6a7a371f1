"""Streams by the extension."""

from torch import Tensor

from gradwire.kernels.core import Given
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer


def given(places: Tensor, values: Tensor) -> Given:
    """A stream for the extension; both contiguous."""
    return pointer(places), pointer(values), places.numel(), CODES[values.dtype]


def split_stream(
    places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor, values_out: Tensor
) -> list[int]:
    places, values = places.contiguous(), values.contiguous()
    whole = given(places, values)
    return chosen.core.split(
        chosen.number, whole, owners, seed, pointer(places_out), pointer(values_out)
    )


def flat_places(places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor) -> None:
    places = places.contiguous()
    k, out = places.numel(), pointer(places_out)
    chosen.core.flat_places(chosen.number, pointer(places), k, owner, owners, seed, out)


def place_stream(out: Tensor, places: Tensor, values: Tensor) -> None:
    places, values = places.contiguous(), values.contiguous()
    chosen.core.put_in_place(given(places, values), CODES[out.dtype], pointer(out))
