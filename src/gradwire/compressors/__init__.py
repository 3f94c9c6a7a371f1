"""Compressors: what is sent. One file each; every member obeys the laws of `tests/contract/`."""

from gradwire.compressors._trial import trial
from gradwire.compressors.cast import BFloat16, Float16, Identity
from gradwire.compressors.eb import ErrorBounded
from gradwire.compressors.fp8 import Float8
from gradwire.compressors.int8 import Int8
from gradwire.compressors.lloyd import Lloyd
from gradwire.compressors.mx import Microscaling
from gradwire.compressors.natural import Natural
from gradwire.compressors.nonzero import NonZero
from gradwire.compressors.onebit import OneBit
from gradwire.compressors.qsgd import QSGD
from gradwire.compressors.randk import RandK
from gradwire.compressors.sign import Sign
from gradwire.compressors.terngrad import TernGrad
from gradwire.compressors.threshold import Threshold
from gradwire.compressors.topk import TopK
from gradwire.strategy import Compressor

BASE = Compressor
MEMBERS = (
    Identity, Float16, BFloat16, Int8, Float8, Microscaling, QSGD, Natural, TernGrad, Sign, OneBit,
    Lloyd, TopK, RandK, Threshold, NonZero,
    ErrorBounded,
)  # fmt: skip

__all__ = [
    "BASE",
    "MEMBERS", "QSGD", "BFloat16", "ErrorBounded", "Float8", "Float16", "Identity", "Int8",
    "Lloyd", "Microscaling", "Natural", "NonZero", "OneBit", "RandK", "Sign", "TernGrad",
    "Threshold", "TopK", "trial",
]  # fmt: skip
