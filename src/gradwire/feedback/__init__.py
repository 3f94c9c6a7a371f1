"""What is remembered because it was not sent. One file each."""

from gradwire.feedback.dgc import MomentumCorrection
from gradwire.feedback.ef import ErrorFeedback
from gradwire.feedback.ef21 import EF21
from gradwire.feedback.momentum import Momentum
from gradwire.feedback.server_momentum import ServerMomentum
from gradwire.feedback.shared_momentum import SharedMomentum

MEMBERS = (ErrorFeedback, MomentumCorrection, EF21, Momentum, ServerMomentum, SharedMomentum)

__all__ = ["EF21", "MEMBERS", "ErrorFeedback", "Momentum", "MomentumCorrection", "ServerMomentum",
           "SharedMomentum"]  # fmt: skip
