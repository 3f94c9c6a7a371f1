"""Measures how fast gradwire's own parts are, and how fast they could be, for `gradwire bench`."""
