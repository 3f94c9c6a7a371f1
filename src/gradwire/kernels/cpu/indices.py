"""Codes of index lists by the extension."""

from torch import Tensor

from gradwire.kernels.index_codes import INDEX_CODES
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer


def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    indices = indices.contiguous()
    number, k, size = INDEX_CODES.index(code), indices.numel(), section.numel()
    chosen.core.encode_indices(number, n, k, pointer(indices), pointer(section), size)


def decode_indices(section: Tensor, n: int, code: str, indices_out: Tensor) -> int:
    section = section.contiguous()
    number, k, size = INDEX_CODES.index(code), indices_out.numel(), section.numel()
    return chosen.core.decode_indices(
        chosen.number, number, n, k, pointer(section), size, pointer(indices_out)
    )
