"""How good are predictions, and how much is lost with the plan that attach(model, "auto") adopts?

    python benchmarks/planner/regret.py --folder out                     # all cells, hours
    python benchmarks/planner/regret.py --folder out many_small --rates 1gbit --layouts 2x1
    python benchmarks/planner/regret.py --folder out transformer_dgc transformer_adam \
        embedding_rows --rates 1gbit 200mbit --layouts 2x1 4x1
    python benchmarks/planner/regret.py --folder out --only-tables

Every cell is one job of predicted.py, whose result is kept in the folder; existing cells are not
run again. Ratios are of one job's interleaved steps, with intervals from resampling.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from models import MODELS, REMEMBERED
from predicted import short_name
from turns import against

from gradwire.report.table import Table

RATES = ("loopback", "5gbit", "1gbit", "200mbit")
LAYOUTS = ("2x1", "4x1", "2x2")  # hosts × ranks of each
MORE = ("8x1",)  # only if asked for: eight ranks on two cores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", choices=[[], *MODELS, *REMEMBERED])
    parser.add_argument("--rates", nargs="*", default=RATES)
    parser.add_argument("--layouts", nargs="*", choices=(*LAYOUTS, *MORE), default=LAYOUTS)
    parser.add_argument("--wrong", nargs="*", default=("0.5", "2"))
    parser.add_argument("--rounds", type=int, nargs=2, default=(4, 10), help="at least, at most")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds, for calm turns")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only-tables", action="store_true")
    parser.add_argument("--json", type=Path, help="all cells in one file")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True, parents=True)
    if not arguments.only_tables:
        for model in arguments.models or MODELS:
            for rate in arguments.rates:
                for layout in arguments.layouts:
                    run(model, rate, layout, arguments)
    found = [json.loads(path.read_text()) for path in arguments.folder.glob("*x*.json")]
    cells = sorted(
        found, key=lambda cell: (_layout(cell), RATES.index(cell["rate"]), cell["model"])
    )
    print(Table(PREDICTED, [predicted(cell) for cell in cells]).as_markdown())
    print(Table(REGRET, [row for cell in cells for row in regrets(cell)]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(cells) + "\n")
    return 0


def _layout(cell: dict[str, Any]) -> int:
    return (*LAYOUTS, *MORE).index(f"{cell['hosts']}x{cell['procs_per_host']}")


def run(model: str, rate: str, layout: str, arguments: argparse.Namespace) -> None:
    """Runs one cell, unless its result exists."""
    file = arguments.folder / f"{model}-{rate}-{layout}.json"
    if file.exists():
        return
    hosts, each = layout.split("x")
    command = [
        sys.executable, str(Path(__file__).with_name("predicted.py")), model, "--rate", rate,
        "--hosts", hosts, "--procs-per-host", each, "--rounds", *map(str, arguments.rounds),
        "--patience", str(arguments.patience), "--json", str(file), "--wrong", *arguments.wrong,
    ]  # fmt: skip
    subprocess.run(command, check=True)


PREDICTED = ("model", "network", "plans", "MAPE", "had not raced", "raced plans later",
             "MAPE but for that", "τ", "τ beyond noise", "adopted after, s")  # fmt: skip


def predicted(cell: dict[str, Any]) -> tuple[str, ...]:
    return (
        cell["model"], place(cell), str(len(cell["plans"])), f"{100 * cell['mape']:.1f} %",
        f"{100 * cell['mape_unseen']:.1f} %",
        f"{100 * (later(cell) - 1):+.0f} %", f"{100 * mape(cell, later(cell)):.1f} %",
        f"{cell['tau']:.2f}", f"{cell['tau_beyond_noise']:.2f}", f"{cell['settled_seconds']:.0f}",
    )  # fmt: skip


def later(cell: dict[str, Any]) -> float:
    """Returns how many times as long the plans that had raced took minutes later: the median."""
    return median(
        median(plan["seconds"]) / plan["race_seconds"]
        for plan in cell["plans"].values() if plan["race_seconds"]
    )  # fmt: skip


def mape(cell: dict[str, Any], pace: float) -> float:
    """The error of predictions, if the machine had been `pace` times as slow when they were
    made."""
    return mean(
        abs(pace * plan["predicted"] / median(plan["seconds"]) - 1)
        for plan in cell["plans"].values()
    )


def place(cell: dict[str, Any]) -> str:
    return f"{cell['hosts']} × {cell['procs_per_host']}, {cell['rate']}"


REGRET = ("model", "network", "adopted, buckets on lanes", "ms", "regret, %",
          "but for MergeComp, %", "tuned bf16 takes", "layer-wise takes")  # fmt: skip


def regrets(cell: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields a row for the adopted plan, and one for each wrong profile."""
    plans = cell["plans"]
    others = {name: p["seconds"] for name, p in plans.items() if not name.startswith("adopted")}
    tuned = [own for name, own in others.items() if name.startswith("bf16")]
    # MergeComp compresses vectors, too, at the limit of what is as good: "auto" may not.
    alike = [own for name, own in others.items() if "mergecomp" not in name]
    for name, plan in plans.items():
        if name.startswith("adopted"):
            own = plan["seconds"]
            caption = name.removeprefix("adopted").removeprefix(", ")
            yield (
                cell["model"], ", ".join(filter(None, (place(cell), caption))),
                f"{plan['strategy']}, {plan['buckets']} on {plan['lanes']}",
                f"{1e3 * median(own):.1f}", regret(own, list(others.values())),
                regret(own, alike), faster(own, tuned),
                layer_wise(plan, others),
            )  # fmt: skip


def regret(own: Sequence[float], others: Sequence[Sequence[float]]) -> str:
    """Returns how much longer a plan takes than the best of the others, with its 95 % interval."""
    share, low, high = (100 * (ratio - 1) for ratio in against(own, others))
    return f"{share:+.0f} ({low:+.0f} to {high:+.0f})"


def faster(own: Sequence[float], others: Sequence[Sequence[float]]) -> str:
    ratio, low, high = against(own, others)
    return f"{1 / ratio:.2f} × ({1 / high:.2f} to {1 / low:.2f})"


def layer_wise(plan: dict[str, Any], others: dict[str, list[float]]) -> str:
    """Compares with the same compressor and a bucket per parameter."""
    layers = f"{short_name(plan['strategy'])}, layer-wise"
    same = [own for name, own in others.items() if name.startswith(layers)]
    return faster(plan["seconds"], same) if same else "–"


if __name__ == "__main__":
    sys.exit(main())
