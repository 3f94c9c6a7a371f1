"""Multipath RDMA by k virtual paths.

The authors of Ethereal compare with this form: a flow in k equal pieces, each hashed. The real one
(Lu et al. 2018, NSDI) moves packets between its paths by their congestion, which loads do not
show and packets do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.network.routing.ecmp_k import EcmpK


@dataclass(frozen=True)
class MpRdma(EcmpK):
    """Every flow in k equal pieces on hashed paths; adaptive in the packet engine only."""

    name: ClassVar[str] = "mp_rdma"
    is_compared: ClassVar[bool] = False
    seeds: ClassVar[int] = 20
