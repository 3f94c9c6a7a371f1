"""A table as text and as markdown."""

import pytest

from gradwire.report.table import Table

TABLE = Table(("", "ms"), [("none | allreduce", "1200"), ("dgc", "250")])


def test_text_is_aligned() -> None:
    assert TABLE.as_text().splitlines() == [
        "                     ms",
        "────────────────   ────",
        "none | allreduce   1200",
        "dgc                 250",
    ]


def test_markdown_escapes_the_pipe() -> None:
    assert TABLE.as_markdown().splitlines() == [
        "|  | ms |",
        "| --- | ---: |",
        r"| none \| allreduce | 1200 |",
        "| dgc | 250 |",
    ]


def test_a_row_has_as_many_cells_as_headers() -> None:
    with pytest.raises(ValueError, match="zip"):
        Table(("a", "b"), [("1",)]).as_text()


def test_a_table_may_be_empty() -> None:
    assert Table(("a", "b"), []).as_text() == "a   b\n─   ─"
