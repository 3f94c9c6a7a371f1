"""How gradwire attaches to models: plain modules, DistributedDataParallel and fully_shard."""
