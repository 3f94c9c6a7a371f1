"""Whether one bucket's step counts: recorded on the device, read on the host when the step ends.

headers of all ranks ──► hear ──┐
damaged payloads ──────► refuse ┤
sums of numbers, bad ──► spoil ─┼─► word ──► kernels.run_unless: averages, or all is undone
others' verdicts ──────► join ──┘    └─────► fine, when the step ends: it counts; or PayloadError
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.runtime.message import check_headers, facts_of


class Verdict:
    """One bucket's verdict. word: (1,) int64, raised by NON_FINITE if all ranks skip the step, by
    DAMAGED if no step can follow."""

    def __init__(self, digest: int, device: torch.device) -> None:
        self.word = kernels.new_status(device)
        self._digest, self._step = digest, -1
        self._told: list[tuple[Told, str]] = []  # with where it was, for error messages
        self._read: int | None = 0  # the word's value, once it was read after all was recorded
        self._asked: Tensor | None = None
        self._answers: list[int] | None = None

    def begin(self, step: int) -> None:
        """Begins a new step, of which nothing is known."""
        if self._read != 0:
            self.word.zero_()
        self._step, self._read = step, None
        self._asked = self._answers = None
        self._told.clear()

    def hear(self, headers: Tensor, where: str = "") -> None:
        """Takes the headers of n messages, (n, 4), into account."""
        headers = headers.clone()  # the next move overwrites the network's buffer
        self._told.append((headers, where))
        kernels.judge(headers, facts_of(self._digest, self._step), self.word)

    def join(self, other: Verdict, where: str) -> None:
        """Joins another verdict, of a step over but for its end: what spoils it spoils this."""
        self._told.append((other, where))
        self.word.bitwise_or_(other.word)

    def spoil(self) -> None:
        """Records that something is not finite."""
        self._read = None
        self.word.bitwise_or_(kernels.NON_FINITE)

    def refuse(self, error: PayloadError) -> None:
        """Records that something that arrived cannot be used. The first error stays."""
        self._read = None
        self.word.bitwise_or_(kernels.DAMAGED)
        self._told.append((error, ""))

    def ask(self, words: Tensor) -> None:
        """Requests that these words, (n,) int64, are read with this one when the step ends."""
        self._asked, self._answers = words, None

    @property
    def answers(self) -> list[int] | None:
        """The values of the words that `ask` was given, or None. The host waits for the device
        unless they were read with the word."""
        if self._answers is None and self._asked is not None:
            self._answers = self._asked.tolist()
        return self._answers

    @property
    def held_back(self) -> bool:
        """Whether the word was raised before averages were written. Call when the step is over."""
        word = int(self.word) if self._read is None else self._read
        try:
            heard = [told for told in self._told if not isinstance(told[0], PayloadError)]
            fine = all(self._hears(*told) for told in heard)
        except PayloadError:
            return True
        return bool(word & kernels.NON_FINITE) or not fine

    @property
    def fine(self) -> bool:
        """Whether the step counts, as far as is known; the host waits for the device.

        Raises PayloadError, with the reason, if something that arrived cannot be used.
        """
        word = int(self.word) if self._read is None else self._read
        for told in self._told if word & kernels.DAMAGED else ():
            self._hears(*told)
        if word & kernels.DAMAGED:
            raise PayloadError(
                f"every payload must arrive undamaged; one of step {self._step} cannot be read on "
                "this rank. The network or another collective corrupted it: run `gradwire "
                "doctor`, and issue no other collectives on gradwire's groups."
            )
        return not word

    def _hears(self, told: Told, where: str) -> bool:
        """Whether one record says that all is finite. Raises PayloadError if it says damage."""
        try:
            if isinstance(told, PayloadError):
                raise told
            if isinstance(told, Verdict):
                return told.fine
            return check_headers(told, self._digest, self._step)
        except PayloadError as error:
            if not where:
                raise
            raise PayloadError(f"{where}: {error}") from error

    def _all(self) -> Iterator[Verdict]:
        """Yields this verdict and all that it has joined."""
        yield self
        for told, _ in self._told:
            if isinstance(told, Verdict):
                yield from told._all()


Told: TypeAlias = "Tensor | PayloadError | Verdict"
"""One record: headers of all ranks, an error, or another verdict."""


def settle(verdicts: Sequence[Verdict]) -> None:
    """Reads the status words of all buckets of a step, and the words that they `ask` for, with one
    wait for each device, once all is recorded."""
    known = [one for verdict in verdicts for one in verdict._all()]
    for device in {verdict.word.device for verdict in known}:
        own = [verdict for verdict in known if verdict.word.device == device]
        asking = [verdict for verdict in own if verdict._asked is not None]
        words = [verdict.word for verdict in own]
        asked = [verdict._asked for verdict in asking if verdict._asked is not None]
        found = iter(torch.cat([*words, *asked]).tolist())
        for verdict in own:
            verdict._read = next(found)
        for verdict, of in zip(asking, asked):
            verdict._answers = [next(found) for _ in range(len(of))]
