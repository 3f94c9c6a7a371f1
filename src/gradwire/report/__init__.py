"""Tables and plots: what was measured, made readable. Nothing here trains or measures."""
