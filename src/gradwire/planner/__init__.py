"""Decides which bucket gets what: pure functions of measured costs."""
