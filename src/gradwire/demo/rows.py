"""The contestants: one row of the table each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradwire.bench.traffic import payload_bytes
from gradwire.strategy import Strategy

Method = Literal["alone", "ddp", "ddp_fp16", "gradwire"]


@dataclass(frozen=True)
class Row:
    """One contestant. `strategy` is "" except in gradwire's rows; `label` is what is printed."""

    label: str
    method: Method
    strategy: str = ""


ALONE = Row("no synchronization", "alone")
DDP = Row("DDP fp32", "ddp")
DDP_FP16 = Row("DDP fp16 hook", "ddp_fp16")

STRATEGIES = ("none | allreduce", "bf16 | allreduce", "dgc(0.001) | allgather")
QUICK_STRATEGIES = ("dgc(0.001) | allgather",)


def gradwire_row(text: str) -> Row:
    """Returns the row of a strategy, labelled as it prints itself. StrategyError for a wrong
    text."""
    strategy = str(Strategy.parse(text))
    return Row(strategy, "gradwire", strategy)


def contestants(strategies: Sequence[str] = (), *, quick: bool = False) -> list[Row]:
    """Returns the rows in the order in which they run.

    Args:
        strategies: gradwire's rows, as text; by default those of the documentation.
        quick: only the rows that show the effect.
    """
    texts = strategies or (QUICK_STRATEGIES if quick else STRATEGIES)
    dense = [ALONE, DDP] if quick else [ALONE, DDP, DDP_FP16]
    return list(dict.fromkeys([*dense, *map(gradwire_row, texts)]))


def sent_share(row: Row) -> float:
    """Returns about which part of an fp32 gradient's bytes a row sends."""
    if row.method != "gradwire":
        return {"alone": 0.0, "ddp": 1.0, "ddp_fp16": 0.5}[row.method]
    elements = 1 << 20
    return payload_bytes(Strategy.parse(row.strategy).compressor, elements) / (4 * elements)


def keeps_momentum(strategy: str) -> bool:
    """Whether a strategy applies the momentum itself, so that the optimizer, SGD, must have
    none."""
    feedback = Strategy.parse(strategy).feedback
    return feedback is not None and feedback.dense() is not None
