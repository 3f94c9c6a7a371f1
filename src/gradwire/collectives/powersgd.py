"""powersgd: each matrix as a product of two thin ones, computed and summed together."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import StrategyError
from gradwire.local import RIGHT_FACTOR, Local
from gradwire.moves import AllReduce
from gradwire.strategy import Collective, Context, Evidence, Member, Rounds, State


@dataclass(frozen=True)
class PowerSGD(Collective):
    """One step of the power method with a warm start, error feedback included.

        M = gradient + residual, (a, b)     Q: the last step's factor, (b, r), equal on every rank
        P = Σ M·Q        first all-reduce, with all vectors, and matrices too small for factors
        P = orthonormal basis of P
        Q = Σ Mᵀ·P / n   second all-reduce
        result = P·Qᵀ    residual = M - result

    Sends r·(a + b) numbers instead of a·b for each matrix; dimensions after the first are joined.
    Matrices that would not get smaller, and vectors, travel dense. Memory: the residual, Q, and a
    bucket's size per lane. The optimizer keeps its momentum. Ranks end bitwise equal where their
    processors run the same linear algebra.
    Source: Vogels et al. 2019, "PowerSGD", algorithms 1 and 2.
    """

    rank: int
    name: ClassVar[str] = "powersgd"
    varies: ClassVar[Mapping[str, Sequence[float]]] = {"rank": (1, 2, 4, 8, 16)}
    needs: ClassVar[tuple[str, ...]] = ("lossless",)
    own_feedback: ClassVar[bool] = True
    compresses: ClassVar[bool] = True
    selects: ClassVar[bool] = True
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence("powersgd(4)", "sgd", True, "language", "powersgd"),
        Evidence("powersgd(4)", "sgdm", True, "speech", "powersgd"),
        Evidence("powersgd(4)", "adamw", False, "gpt", "powersgd"),
    )

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise StrategyError(
                f"powersgd's rank must be a whole number, at least 1; got {self.rank!r}. Use for "
                "example powersgd(4)."
            )

    def is_as_fine_as(self, other: Member) -> bool:
        return isinstance(other, PowerSGD) and self.rank >= other.rank

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = _Factors(ctx, self.rank)
        dense_and_left = yield AllReduce(work.left())
        work.orthonormalize(dense_and_left)
        right = work.right()
        if right.numel():
            right = yield AllReduce(right)
        ctx.commit(work.status, work.finish(right))


class _Factors:
    """The arithmetic on one bucket. status: raised if something is not finite, on all ranks alike
    from the first sum on; then all that is summed is NaN, and the state does not change."""

    def __init__(self, ctx: Context, rank: int) -> None:
        self.world, self._room = ctx.world, ctx.room
        parameters = ctx.locals(uses=rank)  # each element is multiplied rank times, twice
        thin = [_is_thin(p.shape, rank) for p in parameters]
        self.dense = [p for p, is_thin in zip(parameters, thin) if not is_thin]
        matrices = [p for p, is_thin in zip(parameters, thin) if is_thin]
        sizes = [p.gradient.numel() for p in matrices]
        room = torch.split(self._room("powersgd matrices", sum(sizes)), sizes)
        self.matrices = [_Matrix(p, rank, m) for p, m in zip(matrices, room)]
        self.status = kernels.new_status(parameters[0].gradient.device)
        self._is_sized = self.status.is_meta  # pricing: tensors have sizes, and no values
        for p in parameters:
            self._flag(p.gradient)

    def left(self) -> Tensor:
        """Returns all of M·Q, then all dense parameters, in one vector."""
        sizes = [m.rows * m.rank for m in self.matrices]
        sizes += [p.gradient.numel() for p in self.dense]
        flat = self._room("powersgd left", sum(sizes))
        self._parts = torch.split(flat, sizes)
        for matrix, part in zip(self.matrices, self._parts):
            torch.mm(matrix.given(), matrix.right, out=part.view(matrix.rows, -1))
        for p, part in zip(self.dense, self._parts[len(self.matrices) :]):
            part.copy_(p.gradient)
        self._spoil(flat)
        return flat

    def orthonormalize(self, total: Tensor) -> None:
        """Make an orthonormal basis of every summed P, and means of dense parameters."""
        self._flag(total)
        parts = torch.split(total, [len(part) for part in self._parts])
        for matrix, part in zip(self.matrices, parts):
            matrix.left = torch.linalg.qr(part.view(matrix.rows, -1)).Q
        for p, part in zip(self.dense, parts[len(self.matrices) :]):
            p.result.copy_(part.div_(self.world))

    def right(self) -> Tensor:
        """Returns all of Mᵀ·P, in one vector."""
        sizes = [m.columns * m.rank for m in self.matrices]
        flat = self._room("powersgd right", sum(sizes))
        for matrix, part in zip(self.matrices, torch.split(flat, sizes)):
            torch.mm(matrix.m.t(), matrix.left, out=part.view(matrix.columns, -1))
        self._spoil(flat)
        return flat

    def finish(self, total: Tensor) -> dict[str, State]:
        """Write the results. Returns the new states of matrices, by parameter."""
        self._flag(total)
        sizes = [m.columns * m.rank for m in self.matrices]
        rights = [part.div_(self.world) for part in torch.split(total, sizes)]
        room = self._room("powersgd product", max((m.m.numel() for m in self.matrices), default=0))
        for matrix, right in zip(self.matrices, rights):
            matrix.multiply(right, room)  # may overflow in 16 bits, on every rank alike
            self._flag(matrix.parameter.result)
        if self._is_sized:
            return {}
        work = zip(self.matrices, rights)
        return {m.parameter.name: m.remembered(right, self.status) for m, right in work}

    def _flag(self, x: Tensor) -> None:
        if not self._is_sized:
            kernels.flag_non_finite(x, self.status)

    def _spoil(self, x: Tensor) -> None:
        if not self._is_sized:
            kernels.spoil_if(self.status, x)


class _Matrix:
    """One parameter as a matrix M, (rows, columns), in fp32."""

    def __init__(self, parameter: Local, rank: int, room: Tensor) -> None:
        self.parameter, self.rank = parameter, rank
        self.rows = parameter.shape[0]
        self.columns = parameter.gradient.numel() // self.rows
        self.flat, self.m = room, room.view(self.rows, self.columns)
        self.left = room.new_empty(0)
        known = parameter.state.get(RIGHT_FACTOR)
        fits = known is not None and known.shape == (self.columns, rank)
        self.right = known if known is not None and fits else self._first_guess()

    def _first_guess(self) -> Tensor:
        if self.m.is_meta:
            return self.m.new_empty((self.columns, self.rank))
        dice = torch.Generator().manual_seed(zlib.crc32(self.parameter.name.encode()))
        guess = torch.randn(
            (self.columns, self.rank), generator=dice, dtype=torch.float32, device="cpu"
        )
        return guess.to(self.m.device)

    def given(self) -> Tensor:
        """Returns M: the gradient plus the residual."""
        gradient, residual = self.parameter.gradient, self.parameter.state.get("residual")
        if residual is None:
            self.flat.copy_(gradient)
        else:
            torch.add(gradient, residual.view(-1), out=self.flat)
        return self.m

    def multiply(self, right: Tensor, room: Tensor) -> None:
        """Write the result, rounded to its dtype."""
        result, right = self.parameter.result.view_as(self.m), right.view(self.columns, -1)
        if result.dtype == self.m.dtype:
            torch.mm(self.left, right.t(), out=result)
        else:
            product = room[: self.m.numel()].view_as(self.m)
            result.copy_(torch.mm(self.left, right.t(), out=product))

    def remembered(self, right: Tensor, status: Tensor) -> State:
        """Returns the residual, M minus the result with its rounding, computed in place; and the
        factor with which the next step starts."""
        residual = self.parameter.state.get("residual")
        if residual is None:
            residual = kernels.zeros(self.flat.numel(), self.flat.device)
        kernels.subtract(self.flat, self.parameter.result, residual.view(-1), status)
        return {"residual": residual, RIGHT_FACTOR: right.view(self.columns, -1).clone()}


def _is_thin(shape: tuple[int, ...], rank: int) -> bool:
    """Whether the factors of this shape are smaller than the matrix."""
    n = math.prod(shape)
    return len(shape) > 1 and n > 0 and rank * (shape[0] + n // shape[0]) < n
