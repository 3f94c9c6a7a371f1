"""Presets: gradients as sparse as those of published models, and some with closed forms.

| preset | shape at scale 1 | density | what |
| --- | --- | --- | --- |
| lstm | 793,471 × 512 | 1.13 % | word embedding, One Billion Words; s = 1.5, 232,663 words |
| nmt | 218,750 × 512 | 2.47 % | word embedding, translation; s = 1.1, 14,327 words |
| bert | 30,522 × 768 | 1.06 % | word embedding, question answering; s = 1.03, 455 words |
| deepfm | 13,375,000 × 16 | 2.80 % | click prediction: 87.55 % of the rows hot, a private tail |
| topk | 4,194,304 | 5 % | the largest 5 % of the layers of a language model |
| adversarial | 4,194,304 | 3.6 % | a block, a stride, hot columns and hot pieces |
| uniform | 1,000,000 | 5 % | independent: overlap p, γ(k) = (1 - (1-p)^k) / p |
| identical | 1,000,000 | 5 % | overlap 1, γ = 1 |
| disjoint | 1,048,576 | 1/256 | overlap 0, γ(k) = k; at most 256 workers |

Densities and γ of the first four are those of ZEN (OSDI'25): one worker's, BERT's 40.8 % after 128
workers, DeepFM's 5.2 % after 8. Sources: `traces.py` for how each is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Generator, Tensor

from gradwire.buckets import digest
from gradwire.errors import UsageError
from sparsity.traces import (
    Adversarial,
    Disjoint,
    HotAndTail,
    Identical,
    Stream,
    TopK,
    Trace,
    Uniform,
    ZipfRows,
)
from sparsity.volumes import Sparsity

_DISJOINT = 256
_DEEPFM_DENSITY, _DEEPFM_HOT = 0.028, 0.8755


_MOST_SCALE = 64


class _Scale:
    """Multiplies counts, and keeps at least one."""

    def __init__(self, preset: str, factor: float) -> None:
        self.preset, self.factor = preset, factor

    def __call__(self, count: float, of: str) -> int:
        scaled = round(count * self.factor)
        if scaled < 1:
            raise UsageError(
                f"scale multiplies the size of a preset and leaves at least one of everything; "
                f"got {self.factor!r}, which leaves '{self.preset}' without {of}. "
                f"Use at least {1 / count:.2g}."
            )
        return scaled


def _zipf(
    rows: int, columns: int, exponent: float, words: int, scale: _Scale, stream: Stream
) -> Trace:
    shape = scale(rows, "rows"), columns
    return ZipfRows(shape, exponent, scale(words, "words"), stream)


def _deepfm(scale: _Scale, stream: Stream) -> Trace:
    rows, columns = 13_375_000, 16
    nonzero = _DEEPFM_DENSITY * rows
    hot = scale(nonzero * _DEEPFM_HOT, "hot rows")
    tail = scale(nonzero * (1 - _DEEPFM_HOT), "rows of the tail")
    return HotAndTail((scale(rows, "rows"), columns), hot, tail, stream)


def _elements(
    kind: type[Uniform], count: int, one_in: int, scale: _Scale, stream: Stream
) -> Trace:
    count = scale(count, "non-zeros")
    return kind((one_in * count,), count, stream)


def _topk(scale: _Scale, stream: Stream) -> Trace:
    return TopK((TopK.LAYERS * TopK.COLUMNS * scale(256, "rows"),), stream)


def _adversarial(scale: _Scale, stream: Stream) -> Trace:
    return Adversarial((Adversarial.COLUMNS * scale(2048, "rows"),), stream)


_MAKE: dict[str, Callable[[_Scale, Stream], Trace]] = {
    "lstm": partial(_zipf, 793_471, 512, 1.5, 232_663),
    "nmt": partial(_zipf, 218_750, 512, 1.1, 14_327),
    "bert": partial(_zipf, 30_522, 768, 1.03, 455),
    "deepfm": _deepfm,
    "topk": _topk,
    "adversarial": _adversarial,
    "uniform": partial(_elements, Uniform, 50_000, 20),
    "identical": partial(_elements, Identical, 50_000, 20),
    "disjoint": partial(_elements, Disjoint, 4096, _DISJOINT),
}
PRESETS = tuple(_MAKE)


def synthetic(preset: str, workers: int, seed: int = 0, scale: float = 1.0) -> list[Tensor]:
    """Returns dense fp32 tensors on the CPU, one per worker, as sparse as the preset says.

    Args:
        preset: one of PRESETS; this module's docstring has their sizes.
        workers: how many tensors. Worker r's is the same however many there are, for every
            preset; `disjoint` ends at 256 workers.
        seed: of all random numbers. Tensors depend on (preset, worker, seed, scale) alone.
        scale: multiplies rows (or elements) and what is drawn of them; columns and exponents
            stay. Zipf's densities grow as the scale shrinks: `nmt` has 4.2 % at 1/64.

    Returns:
        [rows, columns] for lstm, nmt, bert and deepfm, whose rows are zero or without a zero;
        [elements] for the others. Values are N(0, 1), except topk's; no non-zero is 0. At scale
        1 one worker of lstm needs 1.6 GB, of deepfm 0.9 GB.

    Raises:
        UsageError: an unknown preset; workers or a scale out of range.
    """
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(
            f"workers is how many tensors are made, a whole number from 1; got {workers!r}. "
            f"Use for example workers=4."
        )
    if preset == "disjoint" and workers > _DISJOINT:
        raise UsageError(
            f"each worker of 'disjoint' has 1/{_DISJOINT} of the elements for itself, so there "
            f"are at most {_DISJOINT}; got {workers}. Use 'uniform'."
        )
    trace = _trace(preset, seed, scale)
    return [trace.tensor(worker) for worker in range(workers)]


def expected(preset: str, seed: int = 0, scale: float = 1.0) -> Sparsity:
    """Returns the sparsity that `synthetic` has in expectation, for any number of workers.

    γ(k) is Σ 1 - (1 - p)^k over Σ p, p the chance of each row or element: closed forms for all but
    `topk`, whose chances are those given the shared part of its gradients. The skewness is that
    of expected counts, without the chance of a draw.

    Raises:
        UsageError: as `synthetic`.
    """
    trace = _trace(preset, seed, scale)
    chances = trace.chances()
    rows = trace.shape[0]
    columns = trace.shape[1] if len(trace.shape) == 2 else None
    upto = torch.cat([torch.zeros(1, dtype=chances.dtype), chances.cumsum(0)])

    def skewness(workers: int) -> float:
        """The skewness over ranges that may end inside a row."""
        ends = torch.arange(workers + 1, dtype=torch.float64) * rows / workers
        whole = ends.long().clamp_(max=rows - 1)
        until = upto[whole] + (ends - whole) * chances[whole]
        return float(workers * until.diff().max() / upto[-1])

    gamma = cache(lambda k: trace.gamma(k, chances))
    density = float(chances.mean())
    return Sparsity(rows * (columns or 1), density, gamma, columns, cache(skewness))


def _trace(preset: str, seed: int, scale: float) -> Trace:
    if preset not in _MAKE:
        raise UsageError(
            f"a preset is one of {', '.join(PRESETS)}; got {preset!r}. Use for example 'nmt'."
        )
    if not (isinstance(scale, int | float) and 0 < scale <= _MOST_SCALE):
        raise UsageError(
            f"scale multiplies the size of a preset, a number above 0, {_MOST_SCALE} at most; got "
            f"{scale!r}. Use for example scale=1/64."
        )
    return _MAKE[preset](_Scale(preset, scale), partial(_stream, preset, seed))


def _stream(preset: str, seed: int, worker: int | None) -> Generator:
    return Generator().manual_seed(digest("sparsity", preset, seed, worker))
