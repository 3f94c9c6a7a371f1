"""Encoding and decoding of sorted index lists; `index_codes` defines the codes."""

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.index_codes import code_bytes
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_ascending
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_memory,
    check_places,
    check_same_device,
)


def check_encode(indices: Tensor, n: int, section: Tensor, size: int, room: Room) -> None:
    """Raises KernelError unless the indices are a list below n, and the section has the size of
    its code."""
    check_places("indices", indices)
    check_buffer("section", section, torch.uint8, size)
    check_same_device(indices, section=section)
    check_apart("section", section, indices)
    check_ascending("indices", indices, n, room, "sort them, and check n", KernelError)


def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    """Writes the code of the indices, every byte of the section.

    indices: (k,) int32, strictly ascending within 0 ... n-1. code: one of INDEX_CODES. section:
    (code_bytes(code, n, k),) uint8, contiguous, written. Raises KernelError.
    """
    room = room_of(indices, section)
    check_encode(indices, n, section, code_bytes(code, n, indices.numel()), room)
    room.encode_indices(indices, n, code, section)


def check_section(what: str, section: Tensor, size: int) -> None:
    """Raises PayloadError unless a received section has so many bytes."""
    if section.dtype != torch.uint8 or section.shape != (size,):
        raise PayloadError(
            f"the {what} must be uint8 of shape ({size},), not {section.dtype} of shape "
            f"{tuple(section.shape)}; check the sender's format"
        )
    check_memory(what, section)


def decode_indices(section: Tensor, n: int, code: str, indices_out: Tensor) -> None:
    """Reads the k indices from their code, whatever bytes the section holds.

    section: (code_bytes(code, n, k),) uint8. n: elements. code: one of INDEX_CODES. indices_out:
    (k,) int32, contiguous, written: strictly ascending within 0 ... n-1.
    Raises PayloadError when no list of k indices has this code, naming the first entry that is
    wrong, and indices_out then means nothing; KernelError for indices_out, n and code.
    """
    room, k = room_of(section, indices_out), indices_out.numel()
    check_buffer("indices_out", indices_out, torch.int32, k)
    check_section(f"{code} code of {k} indices below {n}", section, code_bytes(code, n, k))
    check_same_device(section, indices_out=indices_out)
    check_apart("indices_out", indices_out, section)
    position = room.decode_indices(section, n, code, indices_out)
    if position == k:
        return
    if position < k:
        wrong = f"entry {position} is missing, out of range or not above the one before"
    else:
        wrong = "the bits after the last entry are not 0"
    raise PayloadError(
        f"the {code} code must hold {k} indices that ascend strictly within 0 ... {n - 1}, and "
        f"then zeros, but {wrong}; the message is damaged or belongs to another parameter"
    )
