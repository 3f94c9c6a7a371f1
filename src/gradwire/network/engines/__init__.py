"""Engines that find how long routes take: flows that share links, and packets in queues."""
