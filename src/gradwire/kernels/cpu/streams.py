"""Streams and their sums by the extension."""

from torch import Tensor

from gradwire.kernels.core import Given
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer


def given(places: Tensor, values: Tensor) -> Given:
    """Returns a stream as the extension takes it. places, values: contiguous."""
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


def merge_streams(
    n: int, places: list[Tensor], values: list[Tensor], divisor: float, places_out: Tensor,
    values_out: Tensor,
) -> int:  # fmt: skip
    held = [(p.contiguous(), v.contiguous()) for p, v in zip(places, values)]
    payloads, type_ = [given(p, v) for p, v in held], CODES[values_out.dtype]
    return chosen.core.merge(
        chosen.number, payloads, n, divisor, type_, pointer(places_out), pointer(values_out)
    )


def top_of_two(
    n: int, a_places: Tensor, a_values: Tensor, b_places: Tensor, b_values: Tensor, k: int,
    places_out: Tensor, values_out: Tensor,
) -> int:  # fmt: skip
    held = [x.contiguous() for x in (a_places, a_values, b_places, b_values)]
    a, b, type_ = given(*held[:2]), given(*held[2:]), CODES[values_out.dtype]
    return chosen.core.top_of_two(
        chosen.number, a, b, min(k, n), pointer(places_out), type_, pointer(values_out)
    )


def contained(places: Tensor, among: Tensor, out: Tensor) -> None:
    places, among = places.contiguous(), among.contiguous()
    chosen.core.contained(
        pointer(places), places.numel(), pointer(among), among.numel(), pointer(out)
    )
