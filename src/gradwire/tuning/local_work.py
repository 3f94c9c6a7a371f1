"""What compressing and adding up cost on one device, without any network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.layout.message import Layout
from gradwire.planner.fit import fit
from gradwire.planner.profile import LocalCost
from gradwire.runtime.encoder import make_encoder
from gradwire.strategy import Key, Sections, State, StepInfo, Strategy
from gradwire.tuning.clock import now

SIZES = (256, 4096, 65_536, 1_048_576, 4_194_304)
_WARM_UP, _RUNS = 2, 7
_MANY = 5  # payloads, to know what each further one adds
_LEAST = 1e-9
_KEY = Key(0, 0, "probe")


def measure(strategy: str, device: torch.device, largest: int) -> LocalCost:
    """Seconds against elements of one parameter, of the strategy's compressor and feedback.

    Not collective, though ranks that share processors should measure at the same time.
    """
    parsed = Strategy.parse(strategy)
    encodes, decodes, adds = [], [], []
    for n in [size for size in SIZES if size <= max(largest, SIZES[0])]:
        dice = torch.Generator().manual_seed(0)  # a job's own dice are not touched
        x, state = torch.randn(n, generator=dice).to(device), dict[str, Tensor]()
        layout = Layout.of([parsed.compressor.claims(n)])
        message = torch.zeros(layout.bytes, dtype=torch.uint8, device=device)
        (sections,) = layout.views(message)
        encode = _encoding(parsed, x, state, sections)
        encodes.append((n, _timed(encode, device)))
        one = _timed(_adding(parsed, [sections], x), device)
        many = _timed(_adding(parsed, [sections] * _MANY, x), device)
        decodes.append((n, one))
        adds.append((n, [max(b - a, _LEAST) / (_MANY - 1) for a, b in zip(one, many)]))
    return LocalCost(fit(encodes), fit(decodes), fit(adds))


def _encoding(
    strategy: Strategy, x: Tensor, state: State, sections: Sections
) -> Callable[[], object]:
    encoder = make_encoder(strategy.compressor, strategy.feedback)
    status = kernels.new_status(x.device)

    def work() -> None:
        encoder.encode(x, state, sections, StepInfo(), _KEY, status)
        encoder.release()

    return work


def _adding(strategy: Strategy, payloads: Sequence[Sections], x: Tensor) -> Callable[[], object]:
    out = torch.empty_like(x)
    return lambda: strategy.compressor.accumulate(payloads, out, len(payloads), _KEY)


def _timed(work: Callable[[], object], device: torch.device) -> list[float]:
    seconds = list[float]()
    for _ in range(_WARM_UP + _RUNS):
        began = now(device)
        work()
        seconds.append(max(now(device) - began, _LEAST))
    return sorted(seconds[_WARM_UP:])
