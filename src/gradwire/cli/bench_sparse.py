"""gradwire bench sparse: what every sparse exchange costs against the number of workers.

Bytes and times by formula (gradwire.sparsity.volumes) for a preset up to 4,096 workers, or for
recorded gradients up to as many as there are. With --count tensors are summed in lockstep and
bytes counted. Points as measured stand in brackets in the tables and as dots in the plot.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradwire.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.report.table import Table

WORKERS = tuple(2**i for i in range(1, 13))
MOST_WORKERS = 1 << 20
_COSTS = {"bytes": 1e6, "seconds": 1e-3}  # in MB, in ms
_FACTS = (
    "overlap", "densification", "skewness", "even_push_imbalance", "even_pull_imbalance",
    "rows_density",
)  # fmt: skip
_YARDSTICKS: dict[str, Literal["ceiling", "floor"]] = {"dense": "ceiling", "reference": "floor"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "preset", nargs="?", default="nmt",
        help="lstm, nmt, bert, deepfm, topk, adversarial, uniform, identical (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--scale", type=float, default=1.0, help="of the preset (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the preset (%(default)s)")
    parser.add_argument(
        "--tensors", type=Path, nargs="+", metavar="FILE",
        help="instead: recorded gradients, as torch.save wrote them, one per worker",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, nargs="+", help="(2, 4, … 4096)")
    parser.add_argument(
        "--count", type=int, nargs="+", default=[], metavar="WORKERS",
        help="also sum so many tensors in lockstep, and count bytes",
    )  # fmt: skip
    parser.add_argument("--rate", default="1gbit", help="of every link (%(default)s)")
    parser.add_argument(
        "--latency-ms", type=float, default=0.1, help="of every wait for others (%(default)s)"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE",
        help='JSON: [{"scheme": "zen", "n": 4, "bytes": 52e6, "seconds": 0.4}, …]',
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="such as sparse.png")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Compute, draw, print; the exit code. Raises UsageError."""
    from gradwire.lab import parse_rate

    if not 0 <= arguments.latency_ms < float("inf"):
        raise UsageError(
            f"latency is 0 ms or more; got {arguments.latency_ms}. Use for example 0.1."
        )
    document = compute(
        arguments.preset, arguments.workers, arguments.scale, arguments.seed,
        read_measured(arguments.measured) if arguments.measured else [],
        recorded=_recorded(arguments.tensors) if arguments.tensors else None,
        count=arguments.count, bytes_per_second=parse_rate(arguments.rate) / 8,
        latency_seconds=1e-3 * arguments.latency_ms,
        progress=lambda line: print(line, file=sys.stderr),
    )  # fmt: skip
    if arguments.plot:
        draw(document, arguments.plot)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        tables = (table(document, cost).as_text() for cost in _COSTS)
        print("\n\n".join([headline(document), *facts(document), *tables]))
    return 0


def _recorded(paths: Sequence[Path]) -> list[Tensor]:
    from gradwire.bench.sparse import recorded

    return recorded(paths)


def compute(
    preset: str, workers: Sequence[int] | None = None, scale: float = 1.0, seed: int = 0,
    points: Sequence[dict[str, Any]] = (), *, recorded: Sequence[Tensor] | None = None,
    count: Sequence[int] = (), bytes_per_second: float = 125e6, latency_seconds: float = 1e-4,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """All formulas at every number of workers, as one JSON document. Raises UsageError.

    recorded: instead of the preset, and counted as they are. count: of how many tensors bytes are
    counted.
    """
    from gradwire.bench.sparse import count as counted
    from gradwire.sparsity import expected, measure, measured, synthetic, times, volumes

    def points_of(n: int) -> list[dict[str, Any]]:
        progress(f"counting the bytes of sums of {n} tensors")
        return counted(tensors[:n])

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
    """The points of a file, a JSON list, as they are there. Raises UsageError."""
    from gradwire.document import Document
    from gradwire.schema import List

    document = Document(
        "a list of measured points", List(_Point()), UsageError, "Correct it there"
    )
    points: list[dict[str, Any]] = document.load(path)
    return points


class _Point:
    """A scheme, a number of workers, and a cost at least."""

    def read(self, value: Any) -> Any:
        from gradwire.schema import Broken, Number, Table, Text, Whole
        from gradwire.sparsity import SCHEMES

        costs = dict.fromkeys(_COSTS, Number(least=0))
        found = Table({"scheme": Text(list(SCHEMES)), "n": Whole(1)}, costs).read(value)
        if found.keys().isdisjoint(_COSTS):
            raise Broken(f"has {' or '.join(_COSTS)}; got neither")
        return value


# -- saying it ---------------------------------------------------------------------------------


def headline(document: dict[str, Any]) -> str:
    """The preset in words."""
    columns = document["columns"]
    what = f"in rows of {columns}" if columns else "one by one"
    return (
        f"{document['preset']}: {document['elements'] / 1e6:.4g} M fp32 elements, "
        f"{document['density']:.2%} of one worker's not zero, {what}"
    )


def facts(document: dict[str, Any]) -> list[str]:
    """What was found of real tensors, if there were some, in a line."""
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
    from gradwire.report.table import Table

    schemes, unit = _schemes(document), _COSTS[cost]
    measured = {(p["scheme"], p["n"]): p[cost] for p in document["measured"] if cost in p}
    rows = []
    for row in document["rows"]:
        n = row["workers"]
        cells = [_cell(row[cost].get(s), measured.get((s, n)), unit) for s in schemes]
        rows.append([str(n), f"{row['gamma']:.3g}", *cells])
    suffix = "MB" if cost == "bytes" else "ms"
    names = (f"{s}, {suffix}" if s == "dense" else s for s in schemes)
    return Table(["workers", "γ", *names], rows)


def _schemes(document: dict[str, Any]) -> list[str]:
    """Those of any row, in their own order."""
    from gradwire.sparsity import SCHEMES

    return [s for s in SCHEMES if any(s in row["bytes"] for row in document["rows"])]


def _cell(by_formula: float | None, measured: float | None, unit: float) -> str:
    parts = [_three_digits(by_formula / unit)] if by_formula is not None else ["–"]
    if measured is not None:
        parts.append(f"({_three_digits(measured / unit)})")
    return " ".join(parts)


def _three_digits(number: float) -> str:
    """Those that count."""
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def draw(document: dict[str, Any], path: Path) -> None:
    """The document's plot. Raises UsageError."""
    from gradwire.lab.rates import format_rate
    from gradwire.report.volume_plot import Curve, Panel, save

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
        for cost, unit in _COSTS.items()
    ]
    save(panels, headline(document), path)
