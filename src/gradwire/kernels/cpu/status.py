"""The status word, by looking at it: on the CPU nobody waits for it."""

import math

from torch import Tensor

from gradwire.kernels.values import NON_FINITE


def raise_unless(finite: bool, status: Tensor) -> None:
    """What the extension says, told by the word; in an ordinary step it is not touched."""
    if not finite:
        status.bitwise_or_(NON_FINITE)


def spoil_if(status: Tensor, x: Tensor) -> None:
    if status:
        x.fill_(math.nan)
