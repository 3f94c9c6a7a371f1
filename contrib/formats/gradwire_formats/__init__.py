"""Topologies, traffic and paths of other tools, one format a file."""
