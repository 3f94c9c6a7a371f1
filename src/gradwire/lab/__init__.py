"""Clusters emulated on one Linux machine: a network namespace per host, every link shaped.

    with Cluster(hosts=4, rate="1gbit") as cluster:
        exit_code = cluster.run(["python", "train.py"])

Nothing made here has a name outside the lab, so nothing can be left behind; see `docs/lab.md`.
"""

from gradwire.lab.availability import Availability, available
from gradwire.lab.cluster import Cluster, Connection, LabTimeoutError
from gradwire.lab.counters import bytes_sent
from gradwire.lab.outages import Outage
from gradwire.lab.rates import parse_rate

__all__ = [
    "Availability",
    "Cluster",
    "Connection",
    "LabTimeoutError",
    "Outage",
    "available",
    "bytes_sent",
    "parse_rate",
]
