"""Topologies, traffic and paths in the formats of other tools, one file for each format."""
