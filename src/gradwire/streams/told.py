"""Few bytes that later sizes depend on: written with a check, and read only where it is right.

Backends abort, or leave bytes unwritten, where ranks believe in different sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import PayloadError

WORD = 8  # bytes


def whole(message: Tensor, size: int) -> Tensor:
    """The message; PayloadError unless it has so many elements."""
    if message.numel() != size:
        raise PayloadError(
            f"{size} elements were to arrive; {message.numel()} did. The network or another "
            "collective corrupted the message: run `gradwire doctor`."
        )
    return message


def told_size(size: int) -> Tensor:
    """The bytes that tell one rank a size, (16,) uint8."""
    return torch.tensor([size, ~size]).view(torch.uint8)


def read_size(message: Tensor, most: int) -> int:
    """The size; PayloadError unless it is undamaged, and within 0 and `most`."""
    size, inverse = whole(message, 2 * WORD).view(torch.int64).tolist()
    return check_within(size if inverse == ~size else -1, most)


def check_within(number: int, most: int) -> int:
    """The number; PayloadError unless it is within 0 and `most`."""
    if not 0 <= number <= most:
        raise PayloadError(
            f"what is announced is within 0 and {most}; got {number}. The message is damaged: "
            "run `gradwire doctor`."
        )
    return number


def sealed_bytes(size: int) -> int:
    """How many bytes `sealed` makes of so many."""
    return size + -size % WORD + WORD


def sealed(content: Tensor) -> Tensor:
    """The bytes, (m,) uint8, with their check: (sealed_bytes(m),) uint8."""
    message = content.new_zeros(sealed_bytes(content.numel()))
    message[: content.numel()] = content
    seal(message)
    return message


def unsealed(message: Tensor, size: int) -> Tensor:
    """The bytes, (size,); or of messages, (n, bytes), each one's, (n, size). PayloadError unless
    they are what was sent."""
    many = message.shape[0] if message.dim() > 1 else 1
    check_seals(whole(message, many * sealed_bytes(size)).view(many, -1))
    return message[..., :size]


def seal(message: Tensor) -> None:
    """Write the check of a message of words of 8 bytes into its last word."""
    words = message.view(torch.int64)
    words[-1] = _check_of(words[:-1])


def check_seals(messages: Tensor) -> None:
    """PayloadError unless each of (n, bytes) messages ends with its check.

    Finds every single bit.
    """
    words = messages.view(torch.int64)
    broken = (_check_of(words[:, :-1]) != words[:, -1]).nonzero().flatten()
    if broken.numel():
        raise PayloadError(
            "what sizes depend on ends with its check; that of message "
            f"{int(broken[0])} is wrong. It is damaged: run `gradwire doctor`."
        )


def _check_of(words: Tensor) -> Tensor:
    """Odd weights, so that a bit more or less always counts; overflow wraps around."""
    weights = 2 * torch.arange(words.shape[-1], device=words.device) + 1
    return (words * weights).sum(-1)
