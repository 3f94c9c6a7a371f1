"""Does the lab deliver the rates it is asked for? Writes results/delivered.json and a table.

python benchmarks/lab/main.py --date 2026-11-20 --machine "2-core …"
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from gradwire.lab import Cluster
from gradwire.lab.probe import ProbeReport, probe
from gradwire.lab.rates import format_rate

RATES = ["10mbit", "100mbit", "1gbit", "10gbit"]
RESULTS = Path(__file__).parent / "results" / "delivered.json"


def main() -> None:
    """Probes every rate several times, interleaved, so that a busy minute affects all alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--date", required=True)
    parser.add_argument("--machine", required=True, help="in words, without names")
    asked = parser.parse_args()
    reports = [_measure(asked.hosts, rate) for _ in range(asked.times) for rate in RATES]
    print(_table(reports))
    document = {
        "question": "Does the lab deliver the rates it is asked for?",
        "date": asked.date,
        "machine": asked.machine,
        "probes": [report.as_json() for report in reports],
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def _measure(hosts: int, rate: str) -> ProbeReport:
    with Cluster(hosts, rate) as cluster:
        return probe(cluster)


def _table(reports: list[ProbeReport]) -> str:
    head = "| asked | all-reduce, % | one stream, % | incast, % | resent | one way | 4 bytes |"
    rates = sorted({report.asked_bits_per_second for report in reports})
    rows = [_row([r for r in reports if r.asked_bits_per_second == rate]) for rate in rates]
    return "\n".join([head, "| --- " * 7 + "|", *rows])


def _row(same: list[ProbeReport]) -> str:
    asked = same[0].asked_bits_per_second

    def percent(name: str) -> str:
        return _range([100 * getattr(report, name) / asked for report in same], ".1f")

    def micros(name: str) -> str:
        return _range([1e6 * getattr(report, name) for report in same], ".0f") + " µs"

    cells: list[Any] = [
        format_rate(asked),
        percent("all_reduce_bits_per_second"),
        percent("stream_bits_per_second"),
        percent("incast_bits_per_second"),
        _range([report.segments_resent for report in same], ".0f"),
        micros("latency_seconds"),
        micros("small_all_reduce_seconds"),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _range(values: list[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}}–{high:{form}})"


if __name__ == "__main__":
    main()
