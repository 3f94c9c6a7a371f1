"""Routing schemes: ways to choose paths, one file each."""

from gradwire.network.routing.adaptive import Adaptive
from gradwire.network.routing.coloured import Coloured
from gradwire.network.routing.ecmp import Ecmp
from gradwire.network.routing.ecmp_k import EcmpK
from gradwire.network.routing.ethereal import Ethereal
from gradwire.network.routing.lpt import Lpt
from gradwire.network.routing.min_split import MinSplit
from gradwire.network.routing.mp_rdma import MpRdma
from gradwire.network.routing.optimal import Optimal
from gradwire.network.routing.reps import Reps
from gradwire.network.routing.scheme import Scheme
from gradwire.network.routing.spray import Spray
from gradwire.network.routing.wrap import Wrap

BASE = Scheme
MEMBERS = (
    Coloured, Lpt, MinSplit, Wrap, Optimal, Ethereal, Spray, Adaptive, Reps, MpRdma, EcmpK, Ecmp,
)  # fmt: skip

__all__ = [
    "BASE", "MEMBERS", "Adaptive", "Coloured", "Ecmp", "EcmpK", "Ethereal", "Lpt", "MinSplit",
    "MpRdma", "Optimal", "Reps", "Scheme", "Spray", "Wrap",
]  # fmt: skip
