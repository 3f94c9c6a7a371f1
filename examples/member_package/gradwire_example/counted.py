"""counted: sends the elements that are not zero, however many there are, each with its index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.strategy import Claims, Compressor, Key, Sections

HEAD = 16  # bytes: the length of the payload, and how many entries there are


@dataclass(frozen=True)
class Counted(Compressor):
    """Places, int32, and values, fp32: 8 bytes per entry. Its payloads have no fixed size.

    0         8         16
    │ bytes   │ count   │ places │ values │
    """

    name: ClassVar[str] = "counted"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        most = HEAD + 8 * n
        return Claims((("uint8", most),), fixed=False, entries=True, contraction=1.0, listed=True)

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        (room,) = sections
        places = x.nonzero().view(-1)
        k = len(places)
        room[:HEAD].view(torch.int64).copy_(torch.tensor([HEAD + 8 * k, k]))
        room[HEAD : HEAD + 4 * k].view(torch.int32).copy_(places)
        room[HEAD + 4 * k : HEAD + 8 * k].view(torch.float32).copy_(x[places])
        status |= ~x.isfinite().all()

    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        (room,) = sections
        _, k = room[:HEAD].view(torch.int64).tolist()
        if not 0 <= k <= n:
            raise PayloadError(f"a payload has 0 to {n} entries; this one says {k}. Send it anew.")
        places = room[HEAD : HEAD + 4 * k].view(torch.int32)
        if k and not bool(((places >= 0) & (places < n)).all()):
            raise PayloadError(f"places are 0 to {n - 1}; a payload has others. Send it anew.")
        return places, room[HEAD + 4 * k : HEAD + 8 * k].view(torch.float32)

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        self.accumulate([sections], x, 1.0)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        total = torch.zeros(x.shape, device=x.device)
        for sections in payloads:
            places, values = self.read(sections, x.numel())
            total.index_add_(0, places.long(), values)
        x.copy_(total / divisor)
