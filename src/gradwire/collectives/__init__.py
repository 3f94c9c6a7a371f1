"""How payloads travel and are summed. One file each, generators of moves."""

from gradwire.collectives.allgather import AllGatherSum
from gradwire.collectives.allreduce import AllReduceSum

MEMBERS = (AllReduceSum, AllGatherSum)

__all__ = ["MEMBERS", "AllGatherSum", "AllReduceSum"]
