"""Feedbacks: what a rank remembers because it was not sent. One file each."""

from gradwire.feedback._trial import trial
from gradwire.feedback.adam import Adam
from gradwire.feedback.dgc import MomentumCorrection
from gradwire.feedback.ef import ErrorFeedback
from gradwire.feedback.ef21 import EF21
from gradwire.feedback.momentum import Momentum
from gradwire.feedback.muon import Muon
from gradwire.feedback.server_adam import ServerAdam
from gradwire.feedback.server_momentum import ServerMomentum
from gradwire.feedback.shared_momentum import SharedMomentum
from gradwire.strategy import Feedback

BASE = Feedback
MEMBERS = (ErrorFeedback, MomentumCorrection, Adam, Muon, EF21, Momentum, ServerMomentum,
           ServerAdam, SharedMomentum)  # fmt: skip

__all__ = ["BASE", "EF21", "MEMBERS", "Adam", "ErrorFeedback", "Momentum", "MomentumCorrection",
           "Muon", "ServerAdam", "ServerMomentum", "SharedMomentum", "trial"]  # fmt: skip
