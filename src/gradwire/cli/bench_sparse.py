"""gradwire bench sparse: bytes of every sparse exchange against the number of workers.

By formula (gradwire.sparsity.volumes), for one preset, up to 4,096 workers; nothing is exchanged.
Measured points, where a file has some, stand in brackets in the table and as dots in the plot.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradwire.errors import UsageError

if TYPE_CHECKING:
    from gradwire.report.table import Table

WORKERS = tuple(2**i for i in range(1, 13))
_FIELDS = {"scheme", "n", "bytes"}
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
        "--workers", type=int, nargs="+", default=list(WORKERS), help="(2, 4, … 4096)"
    )
    parser.add_argument("--measured", type=Path, metavar="FILE",
                        help='JSON: [{"scheme": "zen", "n": 4, "bytes": 52e6}, …]')  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="such as sparse.png")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Compute, draw, print; the exit code. Raises UsageError."""
    points = read_measured(arguments.measured) if arguments.measured else []
    document = compute(
        arguments.preset, arguments.workers, arguments.scale, arguments.seed, points
    )
    if arguments.plot:
        draw(document, arguments.plot)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        print(f"{headline(document)}\n\n{table(document).as_text()}")
    return 0


def compute(
    preset: str,
    workers: Sequence[int] = WORKERS,
    scale: float = 1.0,
    seed: int = 0,
    points: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """All formulas at every number of workers, as one JSON document. Raises UsageError."""
    from gradwire.sparsity import expected, volumes

    wrong = [n for n in workers if n < 1]
    if wrong:
        raise UsageError(f"workers are counted from 1; got {wrong[0]}. Use for example 2 4 8.")
    sparsity = expected(preset, seed, scale)
    rows = [
        {
            "workers": n,
            "gamma": sparsity.gamma(n),
            "skewness": sparsity.skewness(n),
            "bytes": volumes(sparsity, n),
        }
        for n in sorted(set(workers))
    ]
    return {
        "preset": preset,
        "scale": scale,
        "seed": seed,
        "elements": sparsity.elements,
        "columns": sparsity.columns,
        "density": sparsity.density,
        "rows": rows,
        "measured": list(points),
    }


def read_measured(path: Path) -> list[dict[str, Any]]:
    """The points of a file, a JSON list. Raises UsageError."""
    from gradwire.sparsity import SCHEMES

    rule = (
        f"measured points are a JSON list of {{scheme, n, bytes}}, scheme one of "
        f"{', '.join(SCHEMES)}"
    )
    try:
        points = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{rule}; '{path}' cannot be read: {error}. Write such a file.") from None
    for point in points if isinstance(points, list) else [points]:
        if not (isinstance(point, dict) and set(point) >= _FIELDS and point["scheme"] in SCHEMES):
            raise UsageError(f"{rule}; '{path}' has {json.dumps(point)}. Correct it there.")
    return list(points)


# -- saying it ---------------------------------------------------------------------------------


def headline(document: dict[str, Any]) -> str:
    """The preset in words."""
    columns = document["columns"]
    what = f"in rows of {columns}" if columns else "one by one"
    return (
        f"{document['preset']}: {document['elements'] / 1e6:.4g} M fp32 elements, "
        f"{document['density']:.2%} of one worker's not zero, {what}"
    )


def table(document: dict[str, Any]) -> Table:
    """MB that the busiest node receives; measured ones in brackets."""
    from gradwire.report.table import Table

    schemes = _schemes(document)
    measured = {(p["scheme"], p["n"]): p["bytes"] for p in document["measured"]}
    rows = []
    for row in document["rows"]:
        n = row["workers"]
        cells = [_cell(row["bytes"].get(s), measured.get((s, n))) for s in schemes]
        rows.append([str(n), f"{row['gamma']:.3g}", *cells])
    return Table(["workers", "γ", *(f"{s}, MB" if s == "dense" else s for s in schemes)], rows)


def _schemes(document: dict[str, Any]) -> list[str]:
    """Those of any row, in their own order."""
    from gradwire.sparsity import SCHEMES

    return [s for s in SCHEMES if any(s in row["bytes"] for row in document["rows"])]


def _cell(by_formula: float | None, measured: float | None) -> str:
    parts = [f"{_megabytes(by_formula)}"] if by_formula is not None else ["–"]
    if measured is not None:
        parts.append(f"({_megabytes(measured)})")
    return " ".join(parts)


def _megabytes(count: float) -> str:
    """Three digits that count."""
    megabytes = count / 1e6
    return f"{megabytes:.3g}" if megabytes < 1000 else f"{megabytes:,.0f}"


def draw(document: dict[str, Any], path: Path) -> None:
    """The document's plot. Raises UsageError."""
    from gradwire.report.volume_plot import Curve, save

    curves = [
        Curve(
            scheme,
            [(r["workers"], r["bytes"][scheme]) for r in document["rows"] if scheme in r["bytes"]],
            [(p["n"], p["bytes"]) for p in document["measured"] if p["scheme"] == scheme],
            _YARDSTICKS.get(scheme, ""),
        )
        for scheme in _schemes(document)
    ]
    save(curves, headline(document), path)
