"""What is known without data: the positions of things in messages, in pieces, and along a path.

The code that makes moves and the code that prices them both read it here, so that they agree.
"""
