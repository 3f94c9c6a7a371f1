"""Collectives: how payloads travel and are summed. One file each, a generator of moves."""

from gradwire.collectives.allgather import AllGatherSum
from gradwire.collectives.allreduce import AllReduceSum
from gradwire.collectives.alltoall import AllToAllSum
from gradwire.collectives.columns import Columns
from gradwire.collectives.dsar import DSAR
from gradwire.collectives.gtopk import GTopK
from gradwire.collectives.hierarchical import Hierarchical
from gradwire.collectives.offload import Offload
from gradwire.collectives.oktopk import OkTopk
from gradwire.collectives.omnireduce import OmniReduce
from gradwire.collectives.powersgd import PowerSGD
from gradwire.collectives.recode import Recode
from gradwire.collectives.sparcml import SparCML
from gradwire.collectives.sparcml_split import SparCMLSplit
from gradwire.collectives.sparse_auto import SparseAuto
from gradwire.collectives.sparse_ps import SparsePS
from gradwire.collectives.steps import Steps
from gradwire.collectives.thc import THC
from gradwire.collectives.union import Union
from gradwire.collectives.vote import MajorityVote
from gradwire.collectives.zen import Zen
from gradwire.strategy import Collective

BASE = Collective
MEMBERS = (
    AllReduceSum, AllGatherSum, AllToAllSum, MajorityVote, PowerSGD, THC, Recode, GTopK,
    SparCML, SparCMLSplit, DSAR, SparsePS, OmniReduce, Union, Zen, OkTopk, Columns, SparseAuto,
    Hierarchical, Offload, Steps,
)  # fmt: skip

__all__ = [
    "BASE",
    "DSAR", "MEMBERS", "THC", "AllGatherSum", "AllReduceSum", "AllToAllSum", "Columns", "GTopK",
    "Hierarchical", "MajorityVote", "Offload", "OkTopk", "OmniReduce", "PowerSGD", "Recode",
    "SparCML", "SparCMLSplit", "SparseAuto", "SparsePS", "Steps", "Union", "Zen",
]  # fmt: skip
