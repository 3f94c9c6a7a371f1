"""Paths: the tasks that a bucket passes through, as paths through Espresso's decision tree.

    compress@gpu, all_to_all@node, decompress@gpu, all_reduce@cross, all_gather@node

    first step   ─► (inside machines: every rank gets a part, or one rank all of it)
    all at once, or two steps          (across machines; or, without machines, among all ranks)
    second step  ─► (inside machines: every rank gets all)

compress and decompress may stand wherever the rules of Wang et al. 2023, "Hi-Speed DNN Training
with Espresso", section 4.2, allow:

- compress is followed by a move of the compressed data, decompress by anything else or the end;
- compressed data may move on as it is, as several contributions that are not added up yet;
- a second step fits its first: all_gather after reduce_scatter and all_to_all, broadcast after
  reduce and gather, compressed or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradwire.errors import StrategyError

DEVICES = ("gpu", "cpu")
"""The places of local work: the gradient's device, or the host's memory."""

AT_ONCE = {False: "all_reduce", True: "all_gather"}
"""The move that sums in one step, by whether its data is compressed."""
FIRST = {False: ("reduce_scatter", "reduce"), True: ("all_to_all", "gather")}
"""The first of two steps, by whether its data is compressed."""
SECOND = {
    "reduce_scatter": "all_gather", "all_to_all": "all_gather", "reduce": "broadcast",
    "gather": "broadcast",
}  # fmt: skip
"""The second of two steps, by the first."""


class Task(NamedTuple):
    """One task of a path. at: the device of "compress" and "decompress"; the group of a move, ""
    for all ranks."""

    name: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.at}" if self.at else self.name

    @property
    def is_local(self) -> bool:
        """Whether it is local work, and no move."""
        return self.name in ("compress", "decompress")


class _Slot(NamedTuple):
    """Moves that are still to come. kind: "whole", in one step or two; "first"; "second"."""

    kind: str
    group: str
    routine: str = ""


@dataclass(frozen=True)
class _State:
    """The state of a path so far. is_fresh: the data was compressed, and has not moved since."""

    slots: tuple[_Slot, ...]
    is_compressed: bool = False
    is_fresh: bool = False

    @property
    def may_end(self) -> bool:
        return not self.slots and not self.is_compressed

    def next(self, devices: Sequence[str]) -> Iterator[tuple[Task, _State]]:
        """Yield each task that may follow, and the state after it."""
        if self.is_compressed and not self.is_fresh:
            for device in devices:
                yield Task("decompress", device), _State(self.slots)
        if self.slots:
            yield from self._moves()
            if not self.is_compressed:
                for device in devices:
                    yield Task("compress", device), _State(self.slots, True, True)

    def _moves(self) -> Iterator[tuple[Task, _State]]:
        (kind, group, routine), rest = self.slots[0], self.slots[1:]
        after = replace(self, slots=rest, is_fresh=False)
        if kind == "second":
            yield Task(routine, group), after
            return
        if kind == "whole":
            yield Task(AT_ONCE[self.is_compressed], group), after
        for name in FIRST[self.is_compressed]:
            second = (_Slot("second", group, SECOND[name]),)
            slots = second + rest if kind == "whole" else rest + second
            yield Task(name, group), replace(after, slots=slots)


_FLAT = _State((_Slot("whole", ""),))
_IN_MACHINES = _State((_Slot("first", "node"), _Slot("whole", "cross")))


@dataclass(frozen=True)
class Path:
    """A path from gradients to their mean. Prints and parses: "reduce_scatter, all_gather"."""

    tasks: tuple[Task, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.tasks))

    @property
    def knows_machines(self) -> bool:
        """Whether it has moves inside machines and across them."""
        return any(task.at == "node" for task in self.tasks)

    @property
    def compressions(self) -> int:
        """The number of times that it compresses: 0 to 4."""
        return sum(task.name == "compress" for task in self.tasks)

    @property
    def first_compress(self) -> int:
        """The index of the first task that compresses; 0 if none does."""
        return next((i for i, task in enumerate(self.tasks) if task.name == "compress"), 0)

    @property
    def keeps_own(self) -> bool:
        """Whether what ranks keep is of their own gradients: nothing moves before the first task
        that compresses."""
        return all(task.is_local for task in self.tasks[: self.first_compress])

    @staticmethod
    def parse(text: str) -> Path:
        """Read a path. Its StrategyError says which task cannot stand where, and what can."""
        words = [word.strip() for word in text.split(",")]
        state = _IN_MACHINES if any(word.endswith("@node") for word in words) else _FLAT
        tasks: list[Task] = []
        for word in words:
            found = {str(task): (task, after) for task, after in state.next(DEVICES)}
            if word not in found:
                raise _wrong(text, tasks, f"'{word}'", state)
            task, state = found[word]
            tasks.append(task)
        if not state.may_end:
            raise _wrong(text, tasks, "the end", state)
        return Path(tuple(tasks))


def paths(devices: Sequence[str] = DEVICES) -> list[Path]:
    """Returns every path: those without machines, then those with; str(path) is the argument of
    `steps("…")`. devices: the choices for each compress and decompress: 4,341 paths with "gpu"
    and "cpu", 174 with one device, as in the paper's figure 8."""
    return [Path(own) for start in (_FLAT, _IN_MACHINES) for own in _walks(start, devices)]


def _walks(state: _State, devices: Sequence[str]) -> Iterator[tuple[Task, ...]]:
    if state.may_end:
        yield ()
    for task, after in state.next(devices):
        for rest in _walks(after, devices):
            yield (task, *rest)


def _wrong(text: str, before: Sequence[Task], got: str, state: _State) -> StrategyError:
    where = f"after '{before[-1]}'" if before else "at the beginning"
    choices = [f"'{task}'" for task, _ in state.next(DEVICES)]
    choices += ["the end"] if state.may_end else []
    return StrategyError(
        f"each step must be able to take what the step before gives; in '{text}', {got} stands "
        f"{where}. Put one of these there: {', '.join(choices)}."
    )
