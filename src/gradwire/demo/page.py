"""The page of `gradwire demo`: whether it helps here, and what each row did."""

from __future__ import annotations

from gradwire.demo.rows import ALONE, DDP
from gradwire.demo.summary import Summary, network, table
from gradwire.lab import Cluster
from gradwire.report import charts
from gradwire.report.charts import Line, Part
from gradwire.report.page import Charts, Figure, Fold, Grid, Key, Page, Section

_LEGEND = (
    Key("box", "k-compute", "what a step takes alone"),
    Key("box", "k-wire", "what synchronization adds"),
)


def page(summary: Summary, cluster: Cluster, command: str) -> Page:
    """Returns the page. command: the command line that repeats the demo."""
    found = table(summary)
    return Page(
        f"gradwire demo: an LSTM, {summary.parameters / 1e6:.1f} M parameters, {network(cluster)}",
        _verdict(summary),
        [
            Section(
                "A step",
                [Figure(_bars(summary), legend=_LEGEND), Grid(found.headers, found.rows)],
            ),
            Section("Loss", [_losses(summary)]),
            Section("How to repeat it", [Fold("the command", command)]),
        ],
        _told(summary),
    )


def _verdict(summary: Summary) -> str:
    """Says how much sooner one of gradwire's rows reaches the loss of DDP in fp32: to be fast and
    learn less is no help."""
    own = [result for result in summary.results if result.strategy]
    arrived = {r.label: r.seconds_to_target for r in own if r.seconds_to_target}
    fast = min(own, key=lambda result: result.step_seconds)
    dense = summary.step_seconds(DDP.label)
    (of_dense,) = (r.seconds_to_target for r in summary.results if r.label == DDP.label)
    if not arrived or not of_dense:
        return (
            f"Not shown here: {fast.label} takes {_ms(fast.step_seconds)} a step instead of "
            f"{_ms(dense)}, and did not reach the loss of {DDP.label} in {fast.steps} steps."
        )
    best = min(arrived, key=lambda label: arrived[label])
    times, steps = of_dense / arrived[best], _ms(summary.step_seconds(best))
    seconds = f"after {arrived[best]:.1f} s, and {DDP.label} after {of_dense:.1f}"
    if f"{times:.1f}" == "1.0":  # a run anew may differ by as much
        return f"No difference shows here: {best} reaches the loss of {DDP.label} {seconds}."
    if times > 1:
        return (
            f"It helps: {best} reaches the loss of {DDP.label} {times:.1f} times as soon, "
            f"{seconds}. Its steps take {steps} instead of {_ms(dense)}."
        )
    return f"It does not help here: {best} reaches the loss of {DDP.label} {seconds}."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def _told(summary: Summary) -> list[str]:
    alone = summary.step_seconds(ALONE.label)
    dense = summary.step_seconds(DDP.label)
    return [
        f"Without any synchronization a step takes {_ms(alone)}: nothing that sends "
        f"gradients could be more than {dense / alone:.1f} times as fast as {DDP.label}.",
        "All rows have the same seed and the same data. Seconds are of training; losses are of "
        "held-out text, in nats per word.",
    ]


def _bars(summary: Summary) -> str:
    alone = summary.step_seconds(ALONE.label)

    def parts(seconds: float) -> list[Part]:
        own = min(alone, seconds)
        return [Part("compute", own), Part("wire", seconds - own)]

    rows = [(result.label, parts(result.step_seconds)) for result in summary.results]
    return charts.bars(rows, _ms)


def _losses(summary: Summary) -> Charts:
    def lines(by_seconds: bool) -> list[Line]:
        return [
            Line(
                result.label,
                [(p.seconds if by_seconds else float(p.step), p.loss) for p in result.curve],
            )
            for result in summary.results
        ]

    figures = [
        Figure(charts.lines(lines(True), "seconds", "loss"), "Loss against seconds"),
        Figure(charts.lines(lines(False), "step", "loss"), "Loss against steps"),
    ]
    names = (result.label for result in summary.results)
    return Charts(figures, [Key("line", f"s{i % 8}", name) for i, name in enumerate(names)])
