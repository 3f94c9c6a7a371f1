"""The same generators as on real ranks, in one process, where moves are late, reordered, damaged
or cut: by seed, so that each case can be had again.

    python benchmarks/faults/simulated.py --json benchmarks/faults/results/simulated.json
    python benchmarks/faults/simulated.py --only 17

A rank asks for moves, bucket by bucket. Dice decide which of the moves that all members of a group
have asked for is performed next, and when each member gets what arrived.
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.buckets import Parameter
from gradwire.errors import GradwireError, MoveError
from gradwire.plan import Plan
from gradwire.report.table import Table
from gradwire.runtime.ledger import Ledger
from gradwire.runtime.lockstep import _agreed, _perform
from gradwire.runtime.verdict import settle
from gradwire.strategy import StepInfo, Strategy

STRATEGIES = (
    "none | allreduce", "bf16 | allreduce", "int8 | alltoall", "int8+ef | alltoall",
    "qsgd(4) | alltoall", "lloyd(2)+ef | allgather", 'lloyd(2)+ef | alltoall(means="lloyd(2)")',
    "lloyd(1)+adam | alltoall", "sign(scaled=True)+ef | alltoall", "onebit+ef | allgather",
    "topk(0.05)+ef | allgather", "topk(0.05)+ef | alltoall", "topk(0.05)+ef | zen",
    "topk(0.05)+ef | oktopk", "topk(0.05)+ef | gtopk", "topk(0.05)+ef | sparcml",
    "nonzero | omnireduce", "threshold(0.5)+ef | allgather", "topk(0.05)+ef | sparse_ps",
    "topk(0.05)+ef | sparse_auto",
    "dgc(0.05) | allgather", "dgc(0.05) | gtopk", "powersgd(2)", "thc(4)", 'recode("int8")',
    "signum(0.9) | vote", "eb(0.01)+ef | allgather", "topk(0.05)+ef21 | allgather",
    'none | hierarchical(outer="allreduce", per_node=2)',
    'topk(0.05)+ef | hierarchical(outer="allgather", per_node=2)',
)  # fmt: skip
FAULTS = ("none", "cut", "flip", "swap", "not finite")
STEPS = 3


@dataclass(frozen=True)
class Case:
    """What one seed stands for. step, move: when the fault strikes, counted over all buckets."""

    seed: int
    strategy: str
    fault: str
    world: int
    rank: int
    step: int
    move: int
    sizes: tuple[int, ...]

    @staticmethod
    def of(seed: int) -> Case:
        """Returns the case of a seed."""
        dice = random.Random(seed)
        text = dice.choice(STRATEGIES)
        world = 2 * dice.randint(1, 4) if "per_node" in text else dice.randint(2, 8)
        sizes = tuple(dice.choice((1, 3, 40, 129, 600)) for _ in range(dice.randint(1, 6)))
        return Case(
            seed, text, dice.choice(FAULTS), world, dice.randrange(world), dice.randrange(STEPS),
            dice.randrange(6), sizes,
        )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"{self.seed}: {self.fault} (rank {self.rank} of {self.world}, step {self.step}, move "
            f"{self.move}); {self.strategy}, {self.sizes}"
        )


@dataclass
class Asked:
    """A rank's bucket: its generator, and the move that it asks for."""

    rank: int
    bucket: int
    rounds: Any
    move: Any = None


class Job:
    """All ranks of a case."""

    def __init__(self, case: Case) -> None:
        self.case, self.dice = case, random.Random(case.seed + 1)
        strategy = Strategy.parse(case.strategy)
        parameters = [Parameter(f"p{i}", (n, 2), "float32") for i, n in enumerate(case.sizes)]
        plan = Plan.make(parameters, strategy, bucket_bytes=400)
        # All buckets are under way at once, and those of a lane share memory.
        lanes = len(plan.buckets)
        self.ledgers = [Ledger(plan, r, case.world, lanes=lanes) for r in range(case.world)]
        self.errors = dict[int, GradwireError]()
        self.stuck = set[int]()
        self.struck = False

    def step(self, number: int, disturbed: bool) -> list[dict[str, Tensor]]:
        """Runs one step. Returns each rank's averages; ranks that fail, or wait for one that has,
        are in `errors` and `stuck`."""
        strikes = disturbed and number == self.case.step
        averages: list[dict[str, Tensor]] = [{} for _ in self.ledgers]
        for ledger, results in zip(self.ledgers, averages):
            for b, bucket in enumerate(ledger.plan.buckets):
                own = [self._gradient(ledger.rank, number, n, strikes) for n in bucket.names]
                results |= {n: torch.empty_like(x) for n, x in zip(bucket.names, own)}
                ledger.add_leftovers(b, own, 1.0)
                places = [results[n] for n in bucket.names]
                ledger.contexts[b].begin(own, places, StepInfo(number))
        self._drive(strikes, disturbed)
        for ledger in self.ledgers:
            if ledger.rank not in self.errors and ledger.rank not in self.stuck:
                self._end(ledger)
        return averages

    def _gradient(self, rank: int, number: int, name: str, strikes: bool) -> Tensor:
        n = 2 * self.case.sizes[int(name[1:])]
        text = f"{self.case.seed} {rank} {number} {name}"
        dice = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        own = torch.randn(n, generator=dice)
        if strikes and self.case.fault == "not finite" and rank == self.case.rank:
            own[n // 2], self.struck = torch.nan, True
        return own

    def _end(self, ledger: Ledger) -> None:
        try:
            settle([context.codec.verdict for context in ledger.contexts])
            skipped = not ledger.finite
            for context in ledger.contexts:
                context.end(skipped)
            ledger.settle()
        except GradwireError as error:
            self.errors[ledger.rank] = error

    def _drive(self, strikes: bool, shuffled: bool) -> None:
        """Performs moves until no group can go on."""
        waiting = [
            Asked(ledger.rank, b, context.rounds())
            for ledger in self.ledgers
            for b, context in enumerate(ledger.contexts)
        ]
        counts, going = Counter[int](), [own for own in waiting if self._next(own, None)]
        arrived = list[tuple[Asked, Any]]()
        while True:
            ready = list(self._ready(going))
            if arrived and (not ready or (shuffled and self.dice.random() < 0.5)):
                own, what = arrived.pop(self.dice.randrange(len(arrived)) if shuffled else 0)
                if own.rank not in self.errors and self._next(own, what):
                    going.append(own)
                continue
            if not ready:
                break
            members = ready[self.dice.randrange(len(ready)) if shuffled else 0]
            going = [own for own in going if own not in members]
            if strikes and self._cuts(members, counts):
                continue
            try:
                moves = _agreed([own.move for own in members], [own.rank for own in members])
            except MoveError as error:  # on real ranks the backend fails, or they wait
                for own in members:
                    self.errors.setdefault(own.rank, error)
                continue
            for own, what in zip(members, _perform(moves)):
                counts[own.rank] += 1
                is_due = strikes and own.rank == self.case.rank
                if is_due and counts[own.rank] == self.case.move + 1:
                    self._damage(what)
                arrived.append((own, what))
        self.stuck |= {own.rank for own in going if own.rank not in self.errors}

    def _next(self, own: Asked, what: Any) -> bool:
        """Lets a generator go on; False if it has come to its end, or failed."""
        try:
            own.move = next(own.rounds) if what is None else own.rounds.send(what)
        except StopIteration:
            return False
        except GradwireError as error:
            self.errors.setdefault(own.rank, error)
            return False
        return own.rank not in self.errors

    def _ready(self, going: list[Asked]) -> Iterator[list[Asked]]:
        """Yields the members of each group that all ask for a move of it."""
        by_group = dict[Any, list[Asked]]()
        for own in going:
            if own.rank not in self.errors:
                by_group.setdefault((own.bucket, own.move.group), []).append(own)
        for (_, group), members in by_group.items():
            wanted = group.ranks if group else range(self.case.world)
            if [own.rank for own in sorted(members, key=lambda o: o.rank)] == list(wanted):
                yield sorted(members, key=lambda own: own.rank)

    def _cuts(self, members: list[Asked], counts: Counter[int]) -> bool:
        """Whether the rank that is lost was to take part; then all members wait for good."""
        if self.case.fault != "cut" or counts[self.case.rank] < self.case.move:
            return False
        if not any(own.rank == self.case.rank for own in members):
            return False
        self.stuck |= {own.rank for own in members}
        self.struck = True
        return True

    def _damage(self, what: Any) -> None:
        """Flips a bit of what arrived, or swaps two parts of it."""
        parts = list(what.values()) if isinstance(what, dict) else [what]
        parts = [x for x in parts if x.numel()]
        if not parts or self.case.fault not in ("flip", "swap"):
            return
        own, self.struck = self.dice.choice(parts), True
        raw = own.view(-1).view(torch.uint8)
        if self.case.fault == "flip":
            bit = self.dice.randrange(8 * raw.numel())
            raw[bit // 8] ^= 1 << bit % 8
        else:
            raw.copy_(raw.roll(raw.numel() // 2))


def judged(case: Case) -> tuple[str, list[str]]:
    """Returns how a case ended, in a few words, and what was wrong with that."""
    calm, job = Job(case), Job(case)
    for number in range(STEPS):
        right, found = calm.step(number, False), job.step(number, True)
        if job.struck:
            return _how(job, right, found), list(_wrong(case, job, right, found))
        if job.errors or job.stuck or not _same(right, found):
            return "otherwise", [f"step {number} differs from an undisturbed one: {job.errors}"]
    return "as undisturbed", []


def _how(job: Job, right: list[dict[str, Tensor]], found: list[dict[str, Tensor]]) -> str:
    if job.stuck:
        return "others wait, until their timeout or a closed connection"
    if job.errors:
        return "an error"
    if _same(right, found):
        return "as undisturbed"
    if _same(found[:1] * len(found), found):
        return "otherwise, alike on all ranks"
    return "otherwise on one rank, found when weights are compared"


def _wrong(
    case: Case, job: Job, right: list[dict[str, Tensor]], found: list[dict[str, Tensor]]
) -> Iterator[str]:
    is_left = [r for r in range(case.world) if r not in job.errors and r not in job.stuck]
    if case.fault == "cut":
        for r in is_left:
            if not _same([right[r]], [found[r]]):
                yield f"rank {r} has other averages than in an undisturbed step"
        if job.errors:
            yield f"a cut is an error of something else: {job.errors}"
    elif case.fault == "not finite":
        if job.errors or job.stuck:
            yield f"a gradient that is not finite is an error: {job.errors or job.stuck}"
        elif not all(x.isnan().all() for own in found for x in own.values()):
            yield "a step that is not finite has averages"
    else:
        for rank, error in job.errors.items():
            if type(error) is MoveError:
                yield f"damage lets ranks ask for other moves: rank {rank}: {error}"
            elif "rank" not in str(error):
                yield f"an error without a rank: rank {rank}: {error}"


def _same(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> bool:
    return all(
        torch.equal(a[name].view(torch.int32), b[name].view(torch.int32))
        for a, b in zip(one, other)
        for name in a
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10_000), help="from, to")
    parser.add_argument("--only", type=int, nargs="*", help="these seeds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found, ends = dict[int, list[str]](), Counter[tuple[str, str]]()
    for seed in arguments.only or range(*arguments.seeds):
        case = Case.of(seed)
        try:
            end, found[seed] = judged(case)
        except Exception as error:
            end, found[seed] = "otherwise", [f"{type(error).__name__}: {error}"]
        ends[case.fault, end] += 1
    wrong = {seed: texts for seed, texts in found.items() if texts}
    for seed, texts in wrong.items():
        print(Case.of(seed), *texts[:2], sep="\n    ")
    rows = [(fault, end, f"{count}") for (fault, end), count in sorted(ends.items())]
    print(Table(("fault", "how it ended", "cases"), rows).as_markdown())
    print(f"{len(found)} cases, of which {len(wrong)} did not end as they must")
    if arguments.json:
        told = {"ends": rows, "wrong": {str(Case.of(s)): t for s, t in wrong.items()}}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
