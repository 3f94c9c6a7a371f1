"""Which path bytes take between hosts: plans for switches, without torch."""
