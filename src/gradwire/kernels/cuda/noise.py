"""Random numbers, drawn on the device.

Bytes for each element: 4.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import part_of, random_bits, write
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.tables import on_its_device, programs, signed
from gradwire.kernels.values import Noise

BLOCK = 4096


@triton.jit(do_not_specialize=["n", "first", "dice1", "dice2", "dice3"])
def thrown(words, n, first, dice1, dice2, dice3, BLOCK: tl.constexpr):
    """Writes the numbers of elements from `first` on, modulo 2**32."""
    i, whole = part_of(n, BLOCK)
    numbers = random_bits(i.to(tl.uint32) + first.to(tl.uint32), dice1, dice2, dice3)
    write(words, i, numbers.to(tl.int32, bitcast=True), n, whole)


@on_its_device
def dice(noise: Noise, first: int, out: Tensor) -> None:
    n = out.numel()
    if n:
        keys = map(signed, (first, *noise))
        launch(thrown, programs(n, BLOCK), out, n, *keys, BLOCK=BLOCK)
