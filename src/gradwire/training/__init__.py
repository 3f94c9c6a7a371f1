"""Where it plugs in: plain modules and DistributedDataParallel."""
