"""Who performs moves: ranks in one process (lockstep), or torch.distributed (conductor)."""
