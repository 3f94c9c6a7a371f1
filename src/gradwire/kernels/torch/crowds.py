"""Codes of crowds in torch."""

import torch
from torch import Tensor

from gradwire.kernels.dealing import CHUNK
from gradwire.kernels.index_codes import INDEX_CODES, smallest
from gradwire.kernels.shapes import CROWD, MASK_BYTES, Shape, parts_of
from gradwire.kernels.torch.indices import decode_indices, encode_indices


def count_crowds(places: Tensor) -> tuple[int, int, int]:
    inside = _by_chunk(places)[2]
    crowded, full = inside >= CROWD, inside == CHUNK
    return int(crowded.sum()), int(full.sum()), int(inside[~crowded].sum())


def _by_chunk(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the chunks that hold places; which of them each place is in; and how many places
    each has."""
    chunks = places // CHUNK
    begins = chunks.diff(prepend=chunks.new_full((1,), -1)) > 0
    number = begins.cumsum(0) - 1
    return chunks[begins], number, number.bincount()


def encode_shaped(places: Tensor, n: int, shape: Shape, section: Tensor) -> bool:
    if not shape.crowded:
        if shape.thin == places.numel():
            encode_indices(places, n, smallest(n, shape.thin), section)
        return shape.thin == places.numel()
    if count_crowds(places) != shape[1:]:
        return False
    chunks, number, inside = _by_chunk(places)
    crowded = inside >= CROWD
    masks = torch.zeros_like(inside).index_add_(0, number, 1 << (places % CHUNK).long())
    full = (inside[crowded] == CHUNK).nonzero().flatten().int()
    masks = masks[crowded & (inside < CHUNK)]
    lists = chunks[crowded], full, places[~crowded[number]]
    *outs, mask_bytes, thin = _sections(section, n, shape)
    for own, (code, size, _, _), out in zip(lists, parts_of(n, shape), (*outs, thin)):
        encode_indices(own, size, INDEX_CODES[code], out)
    mask_bytes.copy_(torch.stack([masks & 255, masks >> 8], 1).flatten())
    return True


def _sections(section: Tensor, n: int, shape: Shape) -> list[Tensor]:
    """Splits a section into crowded, full, masks and thin."""
    crowded, full, thin = (size for *_, size in parts_of(n, shape))
    masks = MASK_BYTES * (shape.crowded - shape.full)
    return list(torch.split(section, [crowded, full, masks, thin]))


def decode_shaped(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> int:
    crowded, full, masks, thin = _sections(section, n, shape)
    lists = list[Tensor]()
    for number, (own, part) in enumerate(zip((crowded, full, thin), parts_of(n, shape)), 1):
        code, size, k, _ = part
        lists.append(torch.empty(k, dtype=torch.int32, device=section.device))
        if decode_indices(own, size, INDEX_CODES[code], lists[-1]) != k:
            return number
    places = _together(lists, masks, shape)
    if not _is_list(places, n, shape.entries):
        return len(lists) + 1
    places_out.copy_(places)
    return 0


def _together(lists: list[Tensor], masks: Tensor, shape: Shape) -> Tensor:
    """Returns the places of all lists, int64, sorted; one that occurs twice is there twice."""
    chunks, full, thin = (own.long() for own in lists)
    bits = torch.full((shape.crowded,), (1 << CHUNK) - 1, device=masks.device, dtype=torch.int64)
    others = torch.ones_like(bits, dtype=torch.bool)
    others[full] = False
    low, high = masks.long().view(-1, MASK_BYTES).unbind(1)
    bits[others] = low | high << 8
    ones = (bits[:, None] >> torch.arange(CHUNK, device=masks.device) & 1).nonzero()
    places = CHUNK * chunks[ones[:, 0]] + ones[:, 1]
    return torch.cat([places, thin]).sort().values


def _is_list(places: Tensor, n: int, k: int) -> bool:
    inside = places.numel() == k and bool((places < n).all())
    return inside and bool((places.diff() > 0).all())
