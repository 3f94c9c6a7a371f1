"""Which bucket gets what: pure functions from a profile to a plan."""
