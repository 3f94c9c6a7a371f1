"""How fast gradwire's own parts are, and what would be possible; `gradwire bench` says it."""
