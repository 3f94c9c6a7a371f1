"""The costs of every sparse exchange over the number of workers: a document, tables, a plot.

Bytes and times by formula (sparsity.volumes) for a preset up to 4,096 workers, or for recorded
gradients up to as many as there are. Sums of tensors in lockstep count bytes beside them. Measured
points are in brackets in the tables and are dots in the plot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from gradwire.document import Document
from gradwire.errors import UsageError
from gradwire.lab.rates import format_rate
from gradwire.report.table import Table
from gradwire.schema import Broken, List, Number, Text, Whole
from gradwire.schema import Table as Fields
from sparsity import counted
from sparsity.measures import measure, measured
from sparsity.plot import Curve, Panel, save
from sparsity.presets import expected, synthetic
from sparsity.volumes import SCHEMES, times, volumes

WORKERS = tuple(2**i for i in range(1, 13))
MOST_WORKERS = 1 << 20
COSTS = {"bytes": 1e6, "seconds": 1e-3}  # in MB, in ms
_FACTS = (
    "overlap", "densification", "skewness", "even_push_imbalance", "even_pull_imbalance",
    "rows_density",
)  # fmt: skip
_YARDSTICKS: dict[str, Literal["ceiling", "floor"]] = {"dense": "ceiling", "reference": "floor"}


def compute(
    preset: str, workers: Sequence[int] | None = None, scale: float = 1.0, seed: int = 0,
    points: Sequence[dict[str, Any]] = (), *, recorded: Sequence[Tensor] | None = None,
    count: Sequence[int] = (), bytes_per_second: float = 125e6, latency_seconds: float = 1e-4,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Returns all formulas at every number of workers, as one JSON document. Raises UsageError.

    recorded: tensors to use instead of the preset, counted as they are. count: the numbers of
    tensors whose bytes are counted.
    """

    def points_of(n: int) -> list[dict[str, Any]]:
        progress(f"counting the bytes of sums of {n} tensors")
        return counted.count(tensors[:n])

    if wrong := [n for n in (*(workers or ()), *count) if not 1 <= n <= MOST_WORKERS]:
        raise UsageError(
            f"workers are counted from 1 to {MOST_WORKERS:,}; got {wrong[0]}. Use for example "
            "2 4 8."
        )
    if recorded is None:
        tensors = synthetic(preset, max(count), seed, scale) if count else []
        sparsity = expected(preset, seed, scale)
    else:
        preset, tensors, sparsity = "recorded", list(recorded), measured(recorded)
        count = count or [len(tensors)]
        workers = workers or [*(n for n in WORKERS if n < len(tensors)), len(tensors)]
    rows = [
        {
            "workers": n,
            "gamma": sparsity.gamma(n),
            "skewness": sparsity.skewness(n),
            "bytes": volumes(sparsity, n),
            "seconds": times(sparsity, n, bytes_per_second, latency_seconds),
        }
        for n in sorted({*(workers or WORKERS), *count})
    ]
    return {
        "preset": preset,
        "scale": scale,
        "seed": seed,
        "elements": sparsity.elements,
        "columns": sparsity.columns,
        "density": sparsity.density,
        "bytes_per_second": bytes_per_second,
        "latency_seconds": latency_seconds,
        "facts": measure(tensors) if tensors else None,
        "rows": rows,
        "measured": [*points, *(p for n in sorted(set(count)) for p in points_of(n))],
    }


def read_measured(path: Path) -> list[dict[str, Any]]:
    """Returns the points of a file, a JSON list, unchanged. Raises UsageError."""
    document = Document(
        "a list of measured points", List(_Point()), UsageError, "Correct it there"
    )
    points: list[dict[str, Any]] = document.load(path)
    return points


class _Point:
    """A point: a scheme, a number of workers, and at least one cost."""

    def read(self, value: Any) -> Any:
        costs = dict.fromkeys(COSTS, Number(least=0))
        found = Fields({"scheme": Text(list(SCHEMES)), "n": Whole(1)}, costs).read(value)
        if found.keys().isdisjoint(COSTS):
            raise Broken(f"has {' or '.join(COSTS)}; got neither")
        return value


# -- saying it ---------------------------------------------------------------------------------


def headline(document: dict[str, Any]) -> str:
    """Returns a description of the preset."""
    columns = document["columns"]
    what = f"in rows of {columns}" if columns else "one by one"
    return (
        f"{document['preset']}: {document['elements'] / 1e6:.4g} M fp32 elements, "
        f"{document['density']:.2%} of one worker's not zero, {what}"
    )


def facts(document: dict[str, Any]) -> list[str]:
    """Returns a line with the measures of real tensors, if there were any."""
    found = document["facts"]
    if found is None:
        return []
    known = ((name.replace("_", " "), found[name]) for name in _FACTS if found[name] is not None)
    return [
        f"of {found['workers']} workers' tensors: "
        + ", ".join(f"{name} {value:.3g}" for name, value in known)
    ]


def table(document: dict[str, Any], cost: str = "bytes") -> Table:
    """ "bytes": MB that the busiest node receives; "seconds": ms. Measured ones in brackets."""
    schemes, unit = _schemes(document), COSTS[cost]
    points = {(p["scheme"], p["n"]): p[cost] for p in document["measured"] if cost in p}
    rows = []
    for row in document["rows"]:
        n = row["workers"]
        cells = [_cell(row[cost].get(s), points.get((s, n)), unit) for s in schemes]
        rows.append([str(n), f"{row['gamma']:.3g}", *cells])
    suffix = "MB" if cost == "bytes" else "ms"
    names = (f"{s}, {suffix}" if s == "dense" else s for s in schemes)
    return Table(["workers", "γ", *names], rows)


def _schemes(document: dict[str, Any]) -> list[str]:
    """Returns the schemes of any row, in their own order."""
    return [s for s in SCHEMES if any(s in row["bytes"] for row in document["rows"])]


def _cell(by_formula: float | None, measured: float | None, unit: float) -> str:
    parts = [_three_digits(by_formula / unit)] if by_formula is not None else ["–"]
    if measured is not None:
        parts.append(f"({_three_digits(measured / unit)})")
    return " ".join(parts)


def _three_digits(number: float) -> str:
    """Returns the number with three significant digits."""
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def draw(document: dict[str, Any], path: Path) -> None:
    """Draws the document's plot. Raises UsageError."""

    def curve(scheme: str, cost: str) -> Curve:
        return Curve(
            scheme,
            [(r["workers"], r[cost][scheme]) for r in document["rows"] if scheme in r[cost]],
            [
                (p["n"], p[cost])
                for p in document["measured"]
                if p["scheme"] == scheme and cost in p
            ],
            _YARDSTICKS.get(scheme, ""),
        )

    rate = format_rate(8 * document["bytes_per_second"])
    waits = f"{1e3 * document['latency_seconds']:g} ms a wait"
    labels = {"bytes": "MB at the busiest node", "seconds": f"ms at {rate}, {waits}"}
    panels = [
        Panel(labels[cost], unit, [curve(scheme, cost) for scheme in _schemes(document)])
        for cost, unit in COSTS.items()
    ]
    save(panels, headline(document), path)
