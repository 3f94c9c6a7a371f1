"""Codes of crowds by the extension."""

from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.shapes import Shape, parts_of
from gradwire.kernels.tensors import pointer


def count_crowds(places: Tensor) -> tuple[int, int, int]:
    places = places.contiguous()
    return chosen.core.count_crowds(pointer(places), places.numel())


def encode_shaped(places: Tensor, n: int, shape: Shape, section: Tensor) -> bool:
    places = places.contiguous()
    parts, k = parts_of(n, shape), places.numel()
    return chosen.core.encode_crowds(parts, pointer(places), k, pointer(section))


def decode_shaped(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> int:
    section = section.contiguous()
    parts, k = parts_of(n, shape), shape.entries
    return chosen.core.decode_crowds(
        chosen.number, parts, pointer(section), k, pointer(places_out)
    )
