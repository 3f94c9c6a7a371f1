"""Codes of index lists by the extension."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.core import EntriesRow
from gradwire.kernels.cpu.casts import cast
from gradwire.kernels.cpu.sparse import add, first_violation
from gradwire.kernels.index_codes import INDEX_CODES
from gradwire.kernels.memory import scratch
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import WriteEntries
from gradwire.kernels.tensors import CODES, pointer


def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    indices = indices.contiguous()
    number, k, size = INDEX_CODES.index(code), indices.numel(), section.numel()
    chosen.core.encode_indices(number, n, k, pointer(indices), pointer(section), size)


def write_entries(segments: Sequence[WriteEntries]) -> int:
    held = [one.places.contiguous() for one in segments]
    return chosen.core.write_entries(chosen.number, list(map(_row, held, segments)))


def _row(places: Tensor, one: WriteEntries) -> EntriesRow:
    """Returns a segment's arguments for the extension. places: its places, contiguous."""
    _, values, n, code, section, out, sent, residual = one
    return (
        n, places.numel(), places.data_ptr(), values.data_ptr(), INDEX_CODES.index(code),
        section.data_ptr(), section.nbytes, CODES[out.dtype], out.data_ptr(), pointer(sent),
        pointer(residual),
    )  # fmt: skip


def decode_indices(section: Tensor, n: int, code: str, indices_out: Tensor) -> int:
    section = section.contiguous()
    number, k, size = INDEX_CODES.index(code), indices_out.numel(), section.numel()
    return chosen.core.decode_indices(
        chosen.number, number, n, k, pointer(section), size, pointer(indices_out)
    )


def add_coded(v: Tensor, section: Tensor, code: str, values: Tensor, factor: float) -> bool:
    k = values.numel()
    if section.dtype == torch.int32:
        places, well = section, first_violation(section, v.numel()) == k
    else:
        places = scratch("places 0", k, torch.int32, v.device)
        well = decode_indices(section, v.numel(), code, places) == k
    if well:
        wide = values.contiguous()
        if values.dtype != torch.float32:
            wide = scratch("values", k, torch.float32, v.device)
            cast(values.contiguous(), wide, None)
        add(v, places, wide, factor)
    return well
