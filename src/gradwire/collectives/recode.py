"""recode: codes are summed from hop to hop, and coded again at each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._butterfly import Butterfly
from gradwire.errors import PayloadError, StrategyError
from gradwire.local import Local
from gradwire.member import padded
from gradwire.moves import Exchange
from gradwire.pairs import Parts, check_promises
from gradwire.strategy import Collective, Compressor, Context, Key, Member, Rounds, Sections, State
from gradwire.streams import whole

_PIECE = 64
"""The number of elements of the smallest part that has an owner."""
_WORD = 16
"""The number of bytes before the codes, which hold the status so far."""


@dataclass(frozen=True)
class Recode(Collective):
    """Sends half of the codes to a partner, which decodes, adds, and codes half of its sums again.

        rank 0  abcd ── cd ──► 2        ab ── b ──► 1        a ══► all that others have, as it came
        rank 2  abcd ── ab ──► 0        cd ── d ──► 3        c

    As few bytes as alltoall, in 2·log2(n) hops instead of n messages, as reduce-scatter by halving
    and all-gather by doubling do for dense tensors. by: the text of a compressor.
    Each hop loses a part of a sum, at last the sum of half of all ranks; the rank that coded it
    keeps the residual, and codes each element once. So nothing is lost in the long run, but one
    step's error grows with the hops, unlike alltoall, which sums what was coded once: with log2(n)
    if ranks' gradients are independent, and with n if they are alike. Ranks beyond the largest
    power of two send all to a partner before, and get the result after.
    Source: the hops, Thakur et al. 2005, "Optimization of Collective Communication Operations in
    MPICH", section 4.5; coding again at each, "DynamiQ" 2026 (arXiv 2602.08923).
    """

    by: str = 'mx("e2m3")'
    name: ClassVar[str] = "recode"
    needs: ClassVar[tuple[str, ...]] = ("lossless",)
    own_feedback: ClassVar[bool] = True
    compresses: ClassVar[bool] = True
    selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.by, str):
            raise StrategyError(
                f"recode's by must be a compressor, as text; got {self.by!r}. Use for example "
                'recode("int8").'
            )
        try:
            object.__setattr__(self, "by", str(self.compressor))  # normalized, to compare equal
            check_promises(Parts(self.compressor, _Fixed()))
        except StrategyError as error:
            raise StrategyError(
                f"recode's by must be a compressor with payloads of a fixed size: {error}"
            ) from error
        if self.compressor.claims(1 << 20).direction:
            raise StrategyError(
                f"recode sums what it decodes, so its compressor must keep sizes; '{self.by}' "
                'sends directions without a size. Use for example recode("int8").'
            )

    @cached_property
    def compressor(self) -> Compressor:
        """The compressor of all messages."""
        made: Compressor = Compressor.parse(self.by)
        return made

    def is_as_fine_as(self, other: Member) -> bool:
        if not isinstance(other, Recode):
            return False
        own, theirs = self.compressor, other.compressor
        return type(own) is type(theirs) and own.is_as_fine_as(theirs)

    def rounds(self, ctx: Context) -> Rounds[None]:
        work, place = _Sums(ctx, self.compressor), Butterfly(ctx.rank, ctx.world)
        yield from _fold(work, place)
        yield from _halve(work, place)
        yield from _double(work, place)
        yield from _unfold(work, place)
        ctx.commit(work.status, work.finish(), work.sent())


@dataclass(frozen=True)
class _Fixed(Collective):
    """A stand-in for the check that the compressor has a fixed size."""

    name: ClassVar[str] = "recode"
    needs: ClassVar[tuple[str, ...]] = ("fixed",)

    def rounds(self, ctx: Context) -> Rounds[None]:
        yield from ()


Pieces = slice
"""A range of pieces, the same of every parameter."""


def _fold(work: _Sums, place: Butterfly) -> Rounds[None]:
    if place.world == place.core:
        return
    all_ = slice(0, place.core)
    if place.is_folded:
        yield Exchange({place.host: work.coded(all_)}, {})
    elif place.guest is None:
        yield Exchange({}, {})
    else:
        arrived = yield Exchange({}, {place.guest: work.bytes_of(all_)})
        work.add(arrived[place.guest], all_)


def _halve(work: _Sums, place: Butterfly) -> Rounds[None]:
    held = slice(0, place.core)
    for partner in reversed(place.partners):
        if place.is_folded:
            yield Exchange({}, {})
            continue
        middle = (held.start + held.stop) // 2
        lower, upper = slice(held.start, middle), slice(middle, held.stop)
        held, other = (lower, upper) if place.rank < partner else (upper, lower)
        arrived = yield Exchange({partner: work.coded(other)}, {partner: work.bytes_of(held)})
        work.add(arrived[partner], held)
    if not place.is_folded:
        work.own(held)


def _double(work: _Sums, place: Butterfly) -> Rounds[None]:
    count = 1
    for partner in place.partners:
        if place.is_folded:
            yield Exchange({}, {})
            continue
        mine, theirs = (r // count * count for r in (place.rank, partner))
        sent = work.told(range(mine, mine + count))
        to_come = range(theirs, theirs + count)
        arrived = yield Exchange({partner: sent}, {partner: work.told_bytes(to_come)})
        work.hear(arrived[partner], to_come)
        count *= 2


def _unfold(work: _Sums, place: Butterfly) -> Rounds[None]:
    if place.world == place.core:
        return
    every = range(place.core)
    if place.is_folded:
        arrived = yield Exchange({}, {place.host: work.told_bytes(every)})
        work.hear(arrived[place.host], every)
    else:
        yield Exchange({} if place.guest is None else {place.guest: work.told(every)}, {})


class _Sums:
    """The arithmetic on one bucket. status: error flags, alike on all ranks once all messages
    have arrived."""

    def __init__(self, ctx: Context, compressor: Compressor) -> None:
        self._compressor, self._world = compressor, ctx.world
        self._key = ctx.seed, ctx.step, ctx.rank
        self._parts = Butterfly(ctx.rank, ctx.world).core
        self._parameters = [p for p in ctx.locals() if p.gradient.numel()]
        device = self._parameters[0].gradient.device if self._parameters else torch.device("cpu")
        self.status = torch.zeros(1, dtype=torch.int64, device=device)
        self._is_real = device.type != "meta"  # on "meta" only sizes are computed
        self._sums = [_given(p) for p in self._parameters]
        self._given = [x.clone() for x in self._sums]
        self._residuals = [torch.zeros_like(x) for x in self._sums]
        self._told: dict[int, Tensor] = {}  # the coded sum of each owner
        for x in self._sums:
            self._raise_unless(x)
            x.nan_to_num_(0.0, 0.0, 0.0)  # so that codes can be decoded

    def coded(self, pieces: Pieces) -> Tensor:
        """Returns a message of this rank's sums; what it loses becomes the residual."""
        message = torch.zeros(self.bytes_of(pieces), dtype=torch.uint8, device=self.status.device)
        for i, (at, sections) in enumerate(self._sections(message, pieces)):
            x, key = self._sums[i][at], self._key_of(i, pieces)
            if self._is_real and x.numel():
                self._compressor.encode(x, sections, key, self.status)
                sent = torch.empty_like(x)
                self._compressor.decode(sections, sent, key)
                torch.sub(x, sent, out=self._residuals[i][at])
        message[:8].view(torch.int64).copy_(self.status)
        return message

    def own(self, pieces: Pieces) -> None:
        """Code the complete sums of this rank's piece for all."""
        self._told[pieces.start] = self.coded(pieces)

    def add(self, arrived: Tensor, pieces: Pieces) -> None:
        """Add a partner's sums to this rank's."""
        for i, (at, sent) in enumerate(self._read(arrived, pieces)):
            self._sums[i][at] += sent

    def told(self, owners: range) -> Tensor:
        """Returns the messages of owners, one after the other."""
        return torch.cat([self._told[r] for r in owners])

    def told_bytes(self, owners: range) -> int:
        return sum(self.bytes_of(slice(r, r + 1)) for r in owners)

    def hear(self, arrived: Tensor, owners: range) -> None:
        """Take the messages of owners, copied, as the next move reuses their memory."""
        sizes = [self.bytes_of(slice(r, r + 1)) for r in owners]
        parts = torch.split(whole(arrived, sum(sizes)).clone(), sizes)
        self._told.update(zip(owners, parts))

    def finish(self) -> dict[str, State]:
        """Write the results. Returns the residuals, by parameter."""
        for owner, message in self._told.items():
            pieces = slice(owner, owner + 1)
            for i, (at, total) in enumerate(self._read(message, pieces)):
                self._sums[i][at] = total
        states: dict[str, State] = {}
        for p, total, residual in zip(self._parameters, self._sums, self._residuals):
            mean = total / self._world
            p.result.copy_(torch.where(self.status > 0, torch.nan, mean))
            self._raise_unless(p.result)  # may overflow in 16 bits, on every rank alike
            residual += mean - p.result.float()
            states[p.name] = {"residual": residual.view(p.shape)}
        return states

    def sent(self) -> dict[str, Tensor]:
        """Returns what left the residual, by parameter, after `finish`."""
        work = zip(self._parameters, self._given, self._residuals)
        return {p.name: given.sub_(residual) for p, given, residual in work}

    # -- messages --------------------------------------------------------------------------

    def bytes_of(self, pieces: Pieces) -> int:
        """Returns the bytes of a message about these pieces."""
        places = (self._place(x, pieces) for x in self._sums)
        return _WORD + sum(self._code_bytes(at.stop - at.start) for at in places)

    def _code_bytes(self, n: int) -> int:
        sections = self._compressor.claims(n).sections if n else ()
        return sum(padded(count * getattr(torch, name).itemsize) for name, count in sections)

    def _place(self, x: Tensor, pieces: Pieces) -> slice:
        """Returns the elements of a parameter in these pieces."""
        n = x.numel()
        size = _PIECE * -(-n // (_PIECE * self._parts))
        return slice(min(n, pieces.start * size), min(n, pieces.stop * size))

    def _sections(self, message: Tensor, pieces: Pieces) -> list[tuple[slice, Sections]]:
        begin = _WORD
        found: list[tuple[slice, Sections]] = []
        for x in self._sums:
            at = self._place(x, pieces)
            n, sections = at.stop - at.start, []
            for name, count in self._compressor.claims(n).sections if n else ():
                dtype: torch.dtype = getattr(torch, name)
                size = count * dtype.itemsize
                sections.append(message[begin : begin + size].view(dtype))
                begin += padded(size)
            found.append((at, sections))
        return found

    def _read(self, message: Tensor, pieces: Pieces) -> list[tuple[slice, Tensor]]:
        """Decode a message by parameter. Gives zeros, and raises the status, if it cannot be read,
        so that no rank stops before the others."""
        message = whole(message, self.bytes_of(pieces)).clone()  # aligned for sections
        self._heed(message[:8].view(torch.int64))
        found = []
        for i, (at, sections) in enumerate(self._sections(message, pieces)):
            sent = torch.zeros_like(self._sums[i][at])
            if self._is_real and sent.numel():
                try:
                    self._compressor.decode(sections, sent, self._key_of(i, pieces))
                except PayloadError:
                    self.status |= kernels.DAMAGED
            found.append((at, sent))
        return found

    def _heed(self, word: Tensor) -> None:
        known = kernels.NON_FINITE | kernels.DAMAGED
        self.status |= (word & known) | kernels.DAMAGED * (word & ~known != 0)

    def _key_of(self, i: int, pieces: Pieces) -> Key:
        seed, step, rank = self._key
        name = f"{self._parameters[i].name}/{pieces.start}:{pieces.stop}"
        return Key(seed, step, name, rank)

    def _raise_unless(self, finite: Tensor) -> None:
        self.status |= ~finite.isfinite().all()


def _given(p: Local) -> Tensor:
    """Returns the gradient plus the residual, in fp32."""
    x = p.gradient.float()
    return x + p.state["residual"].view(-1) if "residual" in p.state else x.clone()
