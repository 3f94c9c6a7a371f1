"""A few bytes that later sizes depend on: written with a check, and used only if it is right.

Backends abort, or leave bytes unwritten, if ranks expect different sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import PayloadError

WORD = 8  # bytes


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
    return check_within(size if inverse == ~size else -1, most)


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


def unsealed(message: Tensor, size: int) -> Tensor:
    """Returns the bytes of a sealed message, (size,), or of each of (n, bytes) messages, (n,
    size). Raises PayloadError if the size or a check is wrong."""
    many = message.shape[0] if message.dim() > 1 else 1
    check_seals(whole(message, many * sealed_bytes(size)).view(many, -1))
    return message[..., :size]


def seal(message: Tensor) -> None:
    """Writes the check of a message, made of words of 8 bytes, into its last word."""
    words = message.view(torch.int64)
    words[-1] = _check_of(words[:-1])


def check_seals(messages: Tensor) -> None:
    """Raises PayloadError unless each of (n, bytes) messages ends with its check.

    The check finds every error of a single bit.
    """
    words = messages.view(torch.int64)
    broken = (_check_of(words[:, :-1]) != words[:, -1]).nonzero().flatten()
    if broken.numel():
        raise PayloadError(
            "messages that announce sizes must end with their checksum; that of message "
            f"{int(broken[0])} is wrong. It is damaged: run `gradwire doctor`."
        )


def _check_of(words: Tensor) -> Tensor:
    """Sums words with odd weights, so that one wrong bit always counts; overflow wraps around."""
    weights = 2 * torch.arange(words.shape[-1], device=words.device) + 1
    return (words * weights).sum(-1)
