"""Decides which bucket goes by which strategy: pure functions from a profile to a plan."""
