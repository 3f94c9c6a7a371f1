"""thc: codes on a grid that all ranks share, which add up on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import StrategyError
from gradwire.local import Local
from gradwire.moves import AllGather, AllReduce
from gradwire.strategy import Collective, Context, Evidence, Member, Rounds, State

BLOCK = 1024
"""Elements that are rotated together, and have a grid of their own."""
_WORD = 32
_REACH = {2: 1.22, 3: 1.95, 4: 2.47, 5: 2.9, 6: 3.27, 7: 3.61, 8: 3.92}
"""Where the outermost level lies, in standard deviations, so that least is lost of what is
normally distributed."""


@dataclass(frozen=True)
class THC(Collective):
    """Rotated at random, rounded to one grid, summed as whole numbers by the network.

        x = gradient + residual, in blocks of 1024;   y = H·D·x / 32     signs D, all ranks' alike
        norms of blocks ──► all          the largest of each says where its levels lie
        codes = y, rounded and cut ══► all-reduce of int32, some codes in each
        result = D·H·(sum of codes) · step / n / 32;   residual = x - what its own codes say

    bits: of a code; 2^bits - 1 levels around 0. On the wire it has room for the sum of all ranks'
    codes, so nobody decodes on the way and nothing is compressed twice: 32 bits hold five codes of
    4 bits among 4 ranks, four among 18 or fewer. A norm of each block and rank is gathered beside.
    What is cut, and all rounding, waits for the next step. Rounded to nearest, not at random: the
    rotation makes the error nearly unbiased, of half the size. Vectors and small tensors go the
    same way. Ranks end bitwise equal where their processors run the same linear algebra.
    Source: Li et al. 2024, "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic
    Compression", algorithm 3 (uniform), with an all-reduce for the parameter server; the rotation:
    Vargaftik et al. 2021, "DRIVE", section 3.
    """

    bits: int = 4
    name: ClassVar[str] = "thc"
    needs: ClassVar[tuple[str, ...]] = ("lossless",)
    own_feedback: ClassVar[bool] = True
    compresses: ClassVar[bool] = True
    selects: ClassVar[bool] = True
    evidence: ClassVar[tuple[Evidence, ...]] = ()

    def __post_init__(self) -> None:
        if type(self.bits) is not int or self.bits not in _REACH:
            raise StrategyError(
                f"thc's bits of a code are whole numbers from 2 to 8; got {self.bits!r}. Use for "
                "example thc(4)."
            )

    def is_as_fine_as(self, other: Member) -> bool:
        return isinstance(other, THC) and self.bits >= other.bits

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = _Rotated(ctx, self.bits)
        if work.rows:
            norms = yield AllGather(work.norms())
            total = yield AllReduce(work.codes(norms))
            work.finish(total)
        ctx.commit(work.status, work.states, work.sent)


def width_of(bits: int, world: int) -> int:
    """Bits that the sum of so many ranks' codes, which have a sign, takes."""
    return (world * _top(bits)).bit_length() + 1


def _top(bits: int) -> int:
    return (1 << bits - 1) - 1


class _Rotated:
    """The arithmetic on one bucket: every parameter in blocks, (rows, BLOCK), the last one filled
    up with zeros. status: raised, on all ranks alike, where a rank's gradients are not finite."""

    def __init__(self, ctx: Context, bits: int) -> None:
        self.world, self.top, self.reach = ctx.world, _top(bits), _REACH[bits]
        self.width = width_of(bits, ctx.world)
        self.together = _WORD // self.width
        self.parameters = [p for p in ctx.locals() if p.gradient.numel()]
        self.states: dict[str, State] = {}
        self.sent: dict[str, Tensor] = {}
        self.sizes = [-(-p.gradient.numel() // BLOCK) for p in self.parameters]
        self.rows = sum(self.sizes)
        device = self.parameters[0].gradient.device if self.parameters else torch.device("cpu")
        self.status = torch.zeros(1, dtype=torch.int64, device=device)
        self.x = torch.zeros(self.rows * BLOCK, device=device).view(-1, BLOCK)
        for p, own in zip(self.parameters, self._of_each(self.x)):
            _add_waiting(own, p)
        noise = kernels.Noise.of(f"{ctx.seed}/{ctx.step}/thc", 0)
        self.signs = _signs(noise, device)

    def norms(self) -> Tensor:
        """Of each block, over the root of its elements. In fp64: squares leave the range."""
        norms: Tensor = torch.linalg.vector_norm(self.x, dim=1, dtype=torch.float64)
        return (norms / math.sqrt(BLOCK)).float()

    def codes(self, norms: Tensor) -> Tensor:
        """Of this rank, several to a word, (words,) int32."""
        largest = norms.view(self.world, -1).amax(0).view(-1, 1)  # NaN, if one is
        self.status |= ~largest.isfinite().all()
        self.step = torch.where(largest.isfinite(), largest * (self.reach / self.top), 0.0)
        inverse = torch.where(self.step > 0, 1 / self.step, 0.0)
        found = (_rotated(self.x * self.signs) * inverse).nan_to_num_(0.0).round_()
        self.own = found.clamp_(-self.top, self.top)
        return self._packed(self.own.int().view(-1))

    def finish(self, total: Tensor) -> None:
        """The results, and what waits then."""
        sent = _rotated(self.own * self.step) * self.signs
        codes = self._unpacked(total).view(-1, BLOCK).float()
        mean = _rotated(codes * self.step / self.world) * self.signs
        mean = torch.where(self.status > 0, torch.nan, mean)
        work = zip(self.parameters, *map(self._of_each, (self.x, sent, mean)))
        for p, x, own, average in work:
            p.result.copy_(average)  # maybe beyond the range of 16 bits, on every rank
            self.status |= ~p.result.isfinite().all()
            own += p.result.float() - average  # what the result's dtype cannot say
            self.states[p.name], self.sent[p.name] = {"residual": (x - own).view(p.shape)}, own

    def _of_each(self, blocks: Tensor) -> list[Tensor]:
        """(n,) of each parameter."""
        parts = torch.split(blocks.view(-1), [rows * BLOCK for rows in self.sizes])
        return [part[: p.gradient.numel()] for p, part in zip(self.parameters, parts)]

    def _packed(self, codes: Tensor) -> Tensor:
        """Code i of a part in the same bits of every word. They have signs, so that no sum, of
        words or of codes, leaves the range, whatever the order."""
        words = -(-codes.numel() // self.together)
        parts = torch.zeros(self.together * words, dtype=torch.int32, device=codes.device)
        parts[: codes.numel()] = codes
        shifts = self.width * torch.arange(self.together, device=codes.device).view(-1, 1)
        return (parts.view(self.together, words) << shifts.int()).sum(0, dtype=torch.int32)

    def _unpacked(self, words: Tensor) -> Tensor:
        shifts = self.width * torch.arange(self.together, device=words.device).view(-1, 1)
        half = 1 << self.width - 1
        middle = sum(half << self.width * i for i in range(self.together))
        codes = (words.long() + middle >> shifts) & 2 * half - 1
        return (codes - half).view(-1)[: self.rows * BLOCK]


def _add_waiting(room: Tensor, p: Local) -> None:
    room.copy_(p.gradient)
    if "residual" in p.state:
        room += p.state["residual"].view(-1)


def _signs(noise: kernels.Noise, device: torch.device) -> Tensor:
    """(BLOCK,) of -1 and 1."""
    if device.type == "meta":
        return torch.empty(BLOCK, device=device)
    return 1.0 - 2.0 * (kernels.random_bits(noise, BLOCK, device=device) >> 31).float()


def _rotated(x: Tensor) -> Tensor:
    """Each block times Sylvester's matrix, over its root, which undoes itself: as a matrix between
    two smaller ones."""
    side = math.isqrt(BLOCK)
    h = torch.ones((1, 1), device=x.device)
    while len(h) < side:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h @ x.view(-1, side, side) @ (h / side)).view(-1, BLOCK)
