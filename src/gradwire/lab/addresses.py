"""Names and addresses inside the lab. They are seen nowhere else, so they clash with nothing."""

INTERFACE = "eth0"
LOOPBACK_INTERFACE = "lo"
LOOPBACK_ADDRESS = "127.0.0.1"
PREFIX_LENGTH = 16
LARGEST_CLUSTER = 256

_OWN, _FIRST_PLANE = 77, 128


def host_name(number: int) -> str:
    """Return what `hostname` says on this host."""
    return f"host{number}"


def host_address(number: int) -> str:
    """Return the IPv4 address of host `number`, counted from 0, if all are on one switch."""
    high, low = divmod(number + 1, 256)
    return f"10.{_OWN}.{high}.{low}"


def placed_address(leaf: int, place: int, plane: int | None = None) -> str:
    """Return the address of the host at this place below a leaf: its own, or on a plane."""
    return f"10.{_network(plane)}.{leaf}.{place + 1}"


def leaf_prefix(leaf: int | None, plane: int | None = None) -> str:
    """Return the prefix of the addresses of all hosts below a leaf, or (None) of all hosts."""
    return f"10.{_network(plane)}.{'0.0/16' if leaf is None else f'{leaf}.0/24'}"


def _network(plane: int | None) -> int:
    return _OWN if plane is None else _FIRST_PLANE + plane
