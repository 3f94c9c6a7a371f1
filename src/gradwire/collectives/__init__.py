"""How payloads travel and are summed. One file each, generators of moves."""

from gradwire.collectives.allgather import AllGatherSum
from gradwire.collectives.allreduce import AllReduceSum
from gradwire.collectives.alltoall import AllToAllSum
from gradwire.collectives.powersgd import PowerSGD
from gradwire.collectives.vote import MajorityVote

MEMBERS = (AllReduceSum, AllGatherSum, AllToAllSum, MajorityVote, PowerSGD)

__all__ = ["MEMBERS", "AllGatherSum", "AllReduceSum", "AllToAllSum", "MajorityVote", "PowerSGD"]
