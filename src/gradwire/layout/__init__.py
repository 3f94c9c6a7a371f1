"""What is known without data: where things lie in messages, in pieces, along a path.

Whoever makes moves and whoever prices them reads it here, so that both say the same.
"""
