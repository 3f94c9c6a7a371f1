"""Describes a run: each function's calls, and each finding with the key that repeats it."""

from __future__ import annotations

from harness.pool import Report

_MOST_TEXT = 1500
_RULE = "| --- | ---: | ---: | ---: | ---: |"


def table(report: Report) -> str:
    """A table in Markdown, then the story of each finding."""
    lines = [
        "| function | calls | accepted | refused | findings |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, counts in sorted(report.calls.items()):
        lines.append(f"| {name} | {sum(counts)} | {counts[0]} | {counts[1]} | {counts[2]} |")
    every = [sum(own) for own in zip(*report.calls.values())]
    lines.append(f"| all | {sum(every)} | {every[0]} | {every[1]} | {every[2]} |")
    lines.append(f"\n{sum(every)} calls in {report.seconds:.0f} s")
    for (target, what, where), found in sorted(report.findings.items()):
        lines += [
            "",
            f"## {target}: {what} {where}",
            f"{found.times} times: {' '.join(found.keys)}",
        ]
        lines.append(found.text[-_MOST_TEXT:])
    lines += [f"- {t} | {w} | {at} | {f.times} | {f.keys[0]}"
              for (t, w, at), f in sorted(report.findings.items())]  # fmt: skip
    if report.missing:
        lines.append(f"not reached: {', '.join(report.missing)}")
    return "\n".join(lines)
