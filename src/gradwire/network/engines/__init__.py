"""What takes how long: flows that share links, and packets in queues."""
