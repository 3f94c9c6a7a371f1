"""All local work on one bucket: compress, check, sum, average; and take it back if a step fails.

begin ──► message / numbers ──► (the network) ──► accumulate / divide ──► end
             state updated                          results written        skipped: given back
                                                    or, if a rank saw inf or NaN:
                                                    NaN everywhere, state undone
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket, digest
from gradwire.errors import PayloadError
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.message import Header, Layout, check_headers, check_size, header_of
from gradwire.strategy import Context, Key, State, StepInfo, Strategy

Memory: TypeAlias = "dict[str, State]"
"""State by parameter name, then by the feedback's names; survives regrouping and resume."""


class _Arrived(NamedTuple):
    """The messages in one buffer, as views."""

    address: int
    headers: Tensor  # (world, 4)
    payloads: list[list[tuple[Tensor, ...]]]  # by parameter, then by rank: the sections


class BucketContext(Context):
    """The local work of one rank on one bucket, step after step.

    The message's buffer is made once, when first needed. `memory` is shared by all buckets of a
    model. exact_undo keeps a copy of the state during a step, so that undoing a non-finite step
    is exact to the bit instead of to rounding.
    """

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory, *,
        device: torch.device | str = "cpu", seed: int = 0, exact_undo: bool = False,
    ) -> None:  # fmt: skip
        self.strategy, self.bucket, self.rank, self.world = strategy, bucket, rank, world
        self.seed, self.exact_undo = seed, exact_undo
        claims = [strategy.compressor.claims(n, bucket.dtype) for n in bucket.sizes]
        self.layout = Layout.of(claims)
        self._names, self._sizes = bucket.names, list(bucket.sizes)
        self.digest = digest(str(strategy.expand()), bucket.parameters, world)
        self._states: list[State] = [memory.setdefault(name, {}) for name in bucket.names]
        self._encoders = [make_encoder(strategy.compressor, strategy.feedback) for _ in claims]
        self._device = device
        # What one parameter sends as it is can be summed where it lies, without a copy of it.
        self._as_it_is = strategy.feedback is None and len(claims) == 1 and claims[0].lossless
        self._arrived: _Arrived | None = None
        self._snapshots: list[dict[str, Tensor]] = []
        self.finite = True

    @cached_property
    def _buffer(self) -> Tensor:
        return torch.zeros(self.layout.bytes, dtype=torch.uint8, device=self._device)

    @cached_property
    def _header(self) -> Header:
        return Header(self._buffer)

    @cached_property
    def _sections(self) -> list[tuple[Tensor, ...]]:
        return self.layout.views(self._buffer)

    def begin(
        self, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Start a step. Both: one contiguous 1-D tensor per parameter; they may be the same."""
        self.gradients, self.results, self.info = gradients, results, info
        self.finite = True

    # -- the collective's side -------------------------------------------------------------

    def message(self) -> Tensor:
        finite = self._encode()
        self._header.write(self.digest, self.info.step, finite)
        return self._buffer

    def numbers(self) -> Tensor:
        if self._as_it_is and self.gradients is self.results and self.info.clip_scale == 1.0:
            return self.gradients[0]
        if not self._encode():
            self.layout.numbers(self._buffer).fill_(math.nan)
        return self.layout.numbers(self._buffer)

    def accumulate(self, messages: Tensor) -> None:
        check_size(messages, self.world, self.layout.bytes)
        arrived = self._views(messages)
        if not check_headers(arrived.headers, self.digest, self.info.step):
            return self._spoil()
        self._write_results(arrived.payloads)
        return None

    def divide(self, total: Tensor) -> None:
        if not kernels.is_finite(total):
            return self._spoil()
        parts = torch.split(total, self._sizes)
        self._write_results([[(part,)] for part in parts])
        return None

    # -- the runtime's side ----------------------------------------------------------------

    def end(self, skipped: bool) -> None:
        """After all buckets of the step. skipped: another bucket was not finite."""
        feedback = self.strategy.feedback
        if skipped and self.finite and feedback is not None:
            for encoder, state, sections in zip(self._encoders, self._states, self._sections):
                encoder.give_back(state, sections)
        self._snapshots = []
        self.gradients = self.results = ()  # so that zero_grad(set_to_none=True) frees them
        for encoder in self._encoders:
            encoder.release()

    def residual_norm(self) -> float:
        """The 2-norm of all that waits in this bucket's residuals."""
        kept = [s["residual"] for s in self._states if "residual" in s]
        return math.sqrt(sum(float(torch.dot(v.view(-1), v.view(-1))) for v in kept))

    # -- steps -----------------------------------------------------------------------------

    def _encode(self) -> bool:
        if self.exact_undo:
            self._snapshots = [{k: v.clone() for k, v in s.items()} for s in self._states]
        work = zip(self._encoders, self.gradients, self._states, self._sections, self._names)
        finite = True
        for encoder, x, state, sections, name in work:
            key = Key(self.seed, self.info.step, name, self.rank)
            finite &= encoder.encode(x, state, sections, self.info, key)
        return finite

    def _write_results(self, payloads: Sequence[Sequence[tuple[Tensor, ...]]]) -> None:
        accumulate = self.strategy.compressor.accumulate
        for name, result, parts in zip(self._names, self.results, payloads):
            try:
                accumulate(parts, result, self.world)
            except PayloadError as error:
                raise PayloadError(f"'{name}' (payload r came from rank r): {error}") from error
        feedback = self.strategy.feedback
        if feedback is not None:
            for result, state in zip(self.results, self._states):
                state.update(feedback.received(result, state))

    def _spoil(self) -> None:
        """Some rank saw inf or NaN: every rank's result is NaN, every state as it was."""
        self.finite = False
        if self.strategy.feedback is not None:  # else nothing is remembered
            work = zip(self._encoders, self.gradients, self._states, self._sections)
            for encoder, x, state, sections in work:
                encoder.undo(x, state, sections, self.info)
        for state, old in zip(self._states, self._snapshots):
            state.clear()
            state.update(old)
        for result in self.results:
            result.fill_(math.nan)

    def _views(self, messages: Tensor) -> _Arrived:
        """Kept while the buffer stays in place."""
        if self._arrived is None or self._arrived.address != messages.data_ptr():
            by_rank = [self.layout.views(message) for message in messages]
            payloads = [list(parts) for parts in zip(*by_rank)]
            self._arrived = _Arrived(messages.data_ptr(), header_of(messages), payloads)
        return self._arrived
