"""Topologies that others describe, one format a file."""
