"""What is remembered because it was not sent. One file each."""

from gradwire.feedback.dgc import MomentumCorrection
from gradwire.feedback.ef import ErrorFeedback
from gradwire.feedback.server_momentum import ServerMomentum

MEMBERS = (ErrorFeedback, MomentumCorrection, ServerMomentum)

__all__ = ["MEMBERS", "ErrorFeedback", "MomentumCorrection", "ServerMomentum"]
