"""Performs moves: among ranks in one process (lockstep), or by torch.distributed (conductor)."""
