"""Optimizers for gradients that arrive compressed. One file each."""

from gradwire.optim.adamw import AdamW
from gradwire.optim.muon import Muon
from gradwire.optim.one_bit_adam import OneBitAdam
from gradwire.optim.sgd import SGD

__all__ = ["SGD", "AdamW", "Muon", "OneBitAdam"]
