"""Names and addresses inside the lab. They are seen nowhere else, so they clash with nothing."""

INTERFACE = "eth0"
LOOPBACK_INTERFACE = "lo"
LOOPBACK_ADDRESS = "127.0.0.1"
PREFIX_LENGTH = 16
LARGEST_CLUSTER = 256


def host_name(number: int) -> str:
    """Return what `hostname` says on this host."""
    return f"host{number}"


def host_address(number: int) -> str:
    """Return the IPv4 address of host `number`, counted from 0."""
    high, low = divmod(number + 1, 256)
    return f"10.77.{high}.{low}"
