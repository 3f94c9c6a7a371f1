"""A few bytes that later sizes depend on: written with a check, and used only if it is right.

Backends abort, or leave bytes unwritten, if ranks expect different sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from gradwire.errors import PayloadError

P = ParamSpec("P")
T = TypeVar("T")
WORD = 8  # bytes


def from_rank(rank: int, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Reads what a rank sent by calling `read`, whose PayloadError then names the rank."""
    try:
        return read(*args, **options)
    except PayloadError as error:
        raise PayloadError(f"what rank {rank} sent: {error}") from error


def whole(message: Tensor, size: int) -> Tensor:
    """Returns the message. Raises PayloadError unless it has `size` elements."""
    if message.numel() != size:
        raise PayloadError(
            f"{size} elements must arrive; {message.numel()} did. The network or another "
            "collective corrupted the message: run `gradwire doctor`."
        )
    return message


def told_size(size: int) -> Tensor:
    """Returns the bytes that tell one rank a size, (16,) uint8."""
    return torch.tensor([size, ~size], dtype=torch.int64, device="cpu").view(torch.uint8)


def read_size(message: Tensor, most: int) -> int:
    """Reads a size. Raises PayloadError unless it is undamaged, and within 0 and `most`."""
    size, inverse = whole(message, 2 * WORD).view(torch.int64).tolist()
    return _size_of(size, inverse, most)


def _size_of(size: int, inverse: int, most: int) -> int:
    return check_within(size if inverse == ~size else -1, most)


def told_length(size: int) -> list[int]:
    """Returns the words that tell all ranks the length of a message; see `longest`."""
    return [size, ~size]


def longest(lengths: Tensor, most: int) -> int:
    """Returns the longest of the lengths that all ranks have told, (n, 2). Raises PayloadError,
    which names the rank, unless each is undamaged and at most `most`."""
    return max(
        from_rank(rank, _size_of, size, inverse, most)
        for rank, (size, inverse) in enumerate(lengths.tolist())
    )


def check_within(number: int, most: int) -> int:
    """Returns the number. Raises PayloadError unless it is within 0 and `most`."""
    if not 0 <= number <= most:
        raise PayloadError(
            f"a number that a rank announces must be from 0 to {most}; got {number}. The message "
            "is damaged: run `gradwire doctor`."
        )
    return number


def sealed_bytes(size: int) -> int:
    """Returns the size of `size` bytes with their check (`sealed`)."""
    return size + -size % WORD + WORD


def sealed(content: Tensor) -> Tensor:
    """Returns the bytes, (m,) uint8, with their check: (sealed_bytes(m),) uint8."""
    message = content.new_zeros(sealed_bytes(content.numel()))
    message[: content.numel()] = content
    seal(message)
    return message


def unsealed(message: Tensor, size: int, senders: Sequence[int]) -> Tensor:
    """Returns the bytes of a rank's sealed message, (size,), or of those of several, (n, size).
    Raises PayloadError if the size or a check is wrong."""
    many = whole(message, len(senders) * sealed_bytes(size)).view(len(senders), -1)
    check_seals(many, senders, signed=False)
    return message[..., :size]


def seal(message: Tensor, sender: int = 0) -> None:
    """Writes the check of a message, made of words of 8 bytes, into its last word; with a sender,
    so that messages of two ranks cannot be taken for each other's."""
    words = message.view(torch.int64)
    words[-1] = _check_of(words[:-1]) + sender


def check_seals(messages: Tensor, senders: Sequence[int], signed: bool = True) -> None:
    """Raises PayloadError unless each of (n, bytes) messages ends with its check, or with that of
    its sender if `signed`. The check finds every error of a single bit."""
    words = messages.view(torch.int64)
    found = words[:, -1] - _check_of(words[:, :-1])
    expected = torch.zeros_like(found)
    if signed:
        expected += torch.tensor(senders, device=words.device, dtype=torch.int64)
    broken = (found != expected).nonzero().flatten().tolist()
    if broken:
        raise PayloadError(
            "a message that sizes depend on must end with its checksum; that of rank "
            f"{senders[broken[0]]} is wrong. It is damaged: run `gradwire doctor`."
        )


def _check_of(words: Tensor) -> Tensor:
    """Sums words with odd weights, so that one wrong bit always counts; overflow wraps around."""
    weights = 2 * torch.arange(words.shape[-1], device=words.device) + 1
    return (words * weights).sum(-1)
