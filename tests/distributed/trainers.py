"""Laws that hold under every trainer, for the test modules, each of which runs one trainer.

    def train(job: Job) -> Trained: ...     # a rank's part of the job, in the trainer's own words

    @pytest.mark.parametrize("law", LAWS)
    def test_accelerate(pair, law, tmp_path):
        law(pair, train, tmp_path)

An epoch is 2 optimizer steps of 2 micro-batches of 4 rows, for each of 2 ranks.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from small import fingerprint
from torch import Tensor, nn

from gradwire import Handle
from gradwire.errors import UsageError

ROWS, BATCH, ACCUMULATE, STEPS_PER_EPOCH = 32, 4, 2, 2
TOPK = "topk(0.05)+ef | allgather"
DGC = "dgc(0.05) | allgather"


@dataclass(frozen=True)
class Job:
    """One training run.

    half: in bfloat16, by autocast. scaled: with a GradScaler of the trainer's own. silent: with
    the mistake that the trainer invites and by which no gradient is exchanged. folder: for
    checkpoints, one after every epoch. resume: from the first epoch's checkpoint.
    """

    folder: str
    plan: str = TOPK
    epochs: int = 1
    momentum: float = 0.9
    half: bool = False
    scaled: bool = False
    silent: bool = False
    resume: bool = False


@dataclass
class Trained:
    """The end of a run on one rank."""

    exchanges: float = 0.0
    parameters: str = ""
    residuals: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()


class Pool(Protocol):
    """Two ranks."""

    def run(self, function: Callable[..., Any], *args: Any) -> list[Trained]: ...


Train = Callable[[Job], Trained]


class Net(nn.Module):
    """A trainer's model: rows in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(20, 50), nn.Linear(50, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.tanh(self.one(x)))
        return out


def net() -> Net:
    """A model with the same weights on all ranks."""
    torch.manual_seed(0)
    return Net()


class Rows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Rows and classes, the same on all ranks; trainers distribute them."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, 20, generator=dice)
        self.y = torch.randint(0, 5, (ROWS,), generator=dice)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


def loader() -> torch.utils.data.DataLoader[tuple[Tensor, Tensor]]:
    return torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=False)


def sgd(model: nn.Module, job: Job) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=job.momentum)


def needs(name: str) -> None:
    """Skips the module if the trainer is not installed; only ranks import it, which takes
    seconds."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)


def launched() -> None:
    """Sets what a launcher sets and `ranks` does not, so that no trainer starts ranks itself."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(address, LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")


def trained(model: nn.Module, handle: Handle) -> Trained:
    """The result of a `train`. model: with or without the trainer's wrapper."""
    kept = fingerprint(tensors(handle.state_dict()))
    return Trained(handle.stats()["steps"], fingerprint(model.parameters()), kept)


def tensors(state: Any) -> Iterator[Tensor]:
    """The tensors of a nested dictionary."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for key in sorted(state):
            yield from tensors(state[key])


def told(train: Train, job: Job) -> Trained:
    """Runs `train` and returns its warnings and usage errors instead of raising them."""
    found, error = Trained(), ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = train(job)
        except UsageError as refused:
            error = str(refused)
    return replace(found, error=error, warnings=tuple(str(w.message) for w in caught))


# -- laws --------------------------------------------------------------------------------------


def one_exchange_per_step(pool: Pool, train: Train, folder: Path) -> None:
    """Micro-batches accumulate, clipping comes after the exchange, and ranks end with the same
    bits."""
    ends = pool.run(train, Job(str(folder), epochs=2))
    assert [end.exchanges for end in ends] == [2 * STEPS_PER_EPOCH] * 2
    assert ends[0].parameters == ends[1].parameters
    assert ends[0].residuals != ends[1].residuals  # rank 0's would not do for both


def the_plan_counts(pool: Pool, train: Train, folder: Path) -> None:
    """Another plan gives another result, so the exchanged gradients are those that train."""
    plans = ("none | allreduce", TOPK)
    ends = [pool.run(train, Job(str(folder / plan[:4]), plan))[0].parameters for plan in plans]
    assert ends[0] != ends[1]


def half_precision(pool: Pool, train: Train, folder: Path) -> None:
    whole, half = (pool.run(train, Job(str(folder / str(h)), half=h)) for h in (False, True))
    assert half[0].exchanges == STEPS_PER_EPOCH
    assert half[0].parameters == half[1].parameters != whole[0].parameters


def a_scaler_is_passed_on(pool: Pool, train: Train, folder: Path) -> None:
    """gradwire refuses a scaler that attach does not know."""
    ends = pool.run(train, Job(str(folder), epochs=2, scaled=True))
    assert [end.exchanges for end in ends] == [2 * STEPS_PER_EPOCH] * 2
    assert ends[0].parameters == ends[1].parameters


def a_resumed_run_goes_on(pool: Pool, train: Train, folder: Path) -> None:
    """The resumed run equals one without a break, bit by bit, and so do its residuals on each
    rank."""
    whole = pool.run(train, Job(str(folder / "whole"), epochs=2))
    pool.run(train, Job(str(folder / "broken")))
    rest = pool.run(train, Job(str(folder / "broken"), epochs=2, resume=True))
    assert [end.exchanges for end in rest] == [STEPS_PER_EPOCH] * 2
    assert [end.parameters for end in rest] == [end.parameters for end in whole]
    assert [end.residuals for end in rest] == [end.residuals for end in whole]


def a_checkpoint_without_residuals(pool: Pool, train: Train, folder: Path) -> None:
    """A run that began without gradwire may go on with it, with a warning."""
    pool.run(train, Job(str(folder)))
    for file in folder.rglob("gradwire-*"):
        file.unlink(missing_ok=True)
    for rank, end in enumerate(pool.run(told, train, Job(str(folder), epochs=2, resume=True))):
        assert any(f"rank {rank} found none" in text for text in end.warnings), end
        assert end.exchanges == STEPS_PER_EPOCH


def momentum_twice(pool: Pool, train: Train, folder: Path) -> None:
    for end in pool.run(told, train, Job(str(folder), DGC)):
        assert "keeps the momentum itself" in end.error
    for end in pool.run(told, train, Job(str(folder), DGC, momentum=0.0)):
        assert not end.error
        assert end.exchanges == STEPS_PER_EPOCH


def a_silent_run_is_warned_of(pool: Pool, train: Train, folder: Path) -> None:
    for end in pool.run(told, train, Job(str(folder), silent=True)):
        assert sum("gradwire has seen no gradients" in text for text in end.warnings) == 1
        assert end.exchanges == 0
    for end in pool.run(told, train, Job(str(folder))):
        assert not any("gradwire" in text for text in end.warnings)


SCALER_LAW = a_scaler_is_passed_on
"""The law for trainers that have a scaler of their own."""

LAWS = (
    one_exchange_per_step,
    the_plan_counts,
    half_precision,
    a_resumed_run_goes_on,
    a_checkpoint_without_residuals,
    momentum_twice,
    a_silent_run_is_warned_of,
)
