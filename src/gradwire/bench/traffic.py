"""The bytes that encoding and decoding must move, each once.

    encode    4 gradient read, 8 per tensor of state (read and written), the payload written
    decode    the payloads read, 4 gradient written

A scale over the whole parameter costs a second pass where something depends on it: terngrad's
codes (4: the gradient again), and whatever `ef` keeps of sign(scaled=True), onebit and terngrad
(8: the residual again). Such rows have two limits, without and with it; the second is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.strategy import Compressor, Sections


def payload_bytes(compressor: Compressor, n: int, written: Sections | None = None) -> int:
    """Returns the bytes of one fp32 parameter's sections, without header and padding.

    Where their size depends on the data, those in `written` are counted.
    """
    import torch

    from gradwire.runtime.message import used

    if written is not None and not compressor.claims(n).fixed:
        return used(written[0])
    sections = compressor.claims(n).sections
    return sum(getattr(torch, dtype).itemsize * count for dtype, count in sections)


def encode_bytes(
    compressor: Compressor, n: int, state_elements: int, written: Sections | None = None
) -> list[int]:
    """Returns the bytes that encoding moves; two numbers where a scale makes a second pass
    necessary."""
    once = 4 * n + 8 * state_elements + payload_bytes(compressor, n, written)
    again = n * compressor.claims(n).read_again[state_elements > 0]
    return [once, once + again] if again else [once]


def decode_bytes(
    compressor: Compressor, n: int, payloads: int, written: Sections | None = None
) -> list[int]:
    """Returns the bytes that summing payloads into one gradient moves."""
    return [4 * n + payloads * payload_bytes(compressor, n, written)]
