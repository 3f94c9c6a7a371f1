"""Every error that gradwire raises on purpose.

    GradwireError
    ├── StrategyError   a strategy cannot be read, has a value out of range, or cannot work
    ├── PlanError       a plan fits neither model nor ranks, or cannot be made of what is given
    ├── UsageError      a call has a wrong argument or comes at a wrong time, or the training loop
    │                   does what a strategy forbids
    ├── PayloadError    a received message is malformed, and nothing of it was used; or ranks'
    │                   weights differ
    ├── MoveError       members of one group requested different moves
    ├── PeerError       a rank died or did not answer within the timeout
    ├── KernelError     a kernel was given tensors it cannot work on
    ├── NetworkError    a topology, a flow or a route is not possible
    └── LabError        an emulated cluster cannot be built or used here

Every message states the rule, the value that broke it, and the next step.
"""


class GradwireError(Exception):
    """Base of all errors of gradwire."""


class StrategyError(GradwireError, ValueError):
    """A strategy text or value is wrong."""


class PlanError(GradwireError, ValueError):
    """A plan does not fit the model, differs between ranks, or cannot be made of what is given."""


class UsageError(GradwireError, RuntimeError):
    """A call has a wrong argument or comes at a wrong time, or the training loop does what a
    strategy forbids."""


class PayloadError(GradwireError, ValueError):
    """A received message fails its checks, or the weights of ranks differ."""


class NetworkError(GradwireError, ValueError):
    """A topology, a flow or a route is not possible, or a file does not hold one."""


class MoveError(GradwireError, RuntimeError):
    """Members of one group disagree on the next move."""


class PeerError(GradwireError, RuntimeError):
    """Another rank failed or is silent; names the rank, where known, and the move."""


class KernelError(GradwireError, ValueError):
    """A kernel got tensors of a wrong dtype, size, or layout."""


class LabError(GradwireError, RuntimeError):
    """The lab cannot do what was requested on this machine."""
