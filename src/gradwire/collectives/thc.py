"""thc: codes on a grid that all ranks share, which the network adds up."""

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
"""The number of elements that are rotated together, with a grid of their own."""
_WORD = 32
_REACH = {2: 1.22, 3: 1.95, 4: 2.47, 5: 2.9, 6: 3.27, 7: 3.61, 8: 3.92}
"""The outermost level by bits, in standard deviations, that loses least of a normal
distribution."""


@dataclass(frozen=True)
class THC(Collective):
    """Rotates at random, and rounds to one grid of whole numbers, which the network sums.

        x = gradient + residual, in blocks of 1024;   y = H·D·x / 32     signs D, all ranks' alike
        norms of blocks ──► all          the largest of each says where its levels lie
        codes = y, rounded and cut ══► all-reduce of int32, some codes in each
        result = D·H·(sum of codes) · step / n / 32;   residual = x - what its own codes say

    bits: of a code; 2^bits - 1 levels around 0. On the wire a code has room for the sum of all
    ranks' codes, so none decodes on the way and nothing is compressed twice: 32 bits hold five
    codes of 4 bits among 4 ranks, four among 18 or fewer. Norms of each rank's blocks are gathered
    first. Clipping and rounding errors stay in the residual. Codes are rounded to nearest, not at
    random: the rotation makes the error nearly unbiased, of half the size. Vectors and small
    tensors are treated alike. Ranks end bitwise equal if their processors run the same linear
    algebra.
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
                f"thc's bits must be a whole number from 2 to 8; got {self.bits!r}. Use for "
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
    """Returns the bits of the sum of so many ranks' codes, which have a sign."""
    return (world * _top(bits)).bit_length() + 1


def _top(bits: int) -> int:
    return (1 << bits - 1) - 1


class _Rotated:
    """The arithmetic on one bucket: every parameter in blocks, (rows, BLOCK), the last one padded
    with zeros. status: raised, on all ranks alike, if a rank's gradients are not finite."""

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
        self.x = torch.zeros(self.rows * BLOCK, device=device, dtype=torch.float32).view(-1, BLOCK)
        for p, own in zip(self.parameters, self._of_each(self.x)):
            _add_waiting(own, p)
        noise = kernels.Noise.of(f"{ctx.seed}/{ctx.step}/thc", 0)
        self.signs = _signs(noise, device)

    def norms(self) -> Tensor:
        """Returns each block's norm over the root of its size; in fp64, as squares overflow."""
        norms: Tensor = torch.linalg.vector_norm(self.x, dim=1, dtype=torch.float64)
        return (norms / math.sqrt(BLOCK)).float()

    def codes(self, norms: Tensor) -> Tensor:
        """Returns this rank's codes, several in a word, (words,) int32."""
        largest = norms.view(self.world, -1).amax(0).view(-1, 1)  # NaN if any norm is
        # So large that what one rank sends, or a sum on the way to it, may not be finite.
        self.status |= ~(largest * (self.reach * BLOCK)).isfinite().all()
        self.step = torch.where(largest.isfinite(), largest * (self.reach / self.top), 0.0)
        inverse = torch.where(self.step > 0, 1 / self.step, 0.0)
        found = (_rotated(self.x * self.signs) * inverse).nan_to_num_(0.0).round_()
        self.own = found.clamp_(-self.top, self.top)
        return self._packed(self.own.int().view(-1))

    def finish(self, total: Tensor) -> None:
        """Write the results, and set the residuals."""
        sent = _rotated(self.own * self.step) * self.signs
        codes = self._unpacked(total).view(-1, BLOCK).float()
        mean = _rotated(codes * self.step / self.world) * self.signs
        mean = torch.where(self.status > 0, torch.nan, mean)
        work = zip(self.parameters, *map(self._of_each, (self.x, sent, mean)))
        for p, x, own, average in work:
            p.result.copy_(average)  # may overflow in 16 bits, on every rank alike
            self.status |= ~p.result.isfinite().all()
            own += p.result.float() - average  # the rounding to the result's dtype
            self.states[p.name], self.sent[p.name] = {"residual": (x - own).view(p.shape)}, own

    def _of_each(self, blocks: Tensor) -> list[Tensor]:
        """Returns the elements of each parameter, (n,), without padding."""
        parts = torch.split(blocks.view(-1), [rows * BLOCK for rows in self.sizes])
        return [part[: p.gradient.numel()] for p, part in zip(self.parameters, parts)]

    def _packed(self, codes: Tensor) -> Tensor:
        """Pack codes: the bits of code i of each word hold part i of the vector. Codes have signs,
        so that no sum of words or codes overflows, whatever the order."""
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
    """Returns random signs, (BLOCK,) of -1 and 1."""
    if device.type == "meta":
        return torch.empty(BLOCK, device=device, dtype=torch.float32)
    return 1.0 - 2.0 * (kernels.random_bits(noise, BLOCK, device=device) >> 31).float()


def _rotated(x: Tensor) -> Tensor:
    """Returns each block times Sylvester's matrix over its root, which is its own inverse;
    computed as a matrix between two smaller ones."""
    side = math.isqrt(BLOCK)
    h = torch.ones((1, 1), device=x.device, dtype=torch.float32)
    while len(h) < side:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h @ x.view(-1, side, side) @ (h / side)).view(-1, BLOCK)
