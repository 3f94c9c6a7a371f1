"""A bucket split among owners: each rank sends to each owner, and each owner sends to all.

my parameters ─ encode piece by piece ─► one message per owner ─► (all to all)
my pieces     ◄─ sum, divide ─ messages of every rank
              ─ encode again ─► one message ─► (all gather) ─► everybody's results
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.kernels import Known, run_unless, spoil_if, together, undo_many_topk
from gradwire.layout.pieces import Pieces
from gradwire.layout.shards import ShardLayout
from gradwire.local import OWNERS_RESIDUAL, Own
from gradwire.member import padded
from gradwire.moves import AllToAll
from gradwire.runtime.codec import Codec, Outcome
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.message import Header, Inbox, check_size
from gradwire.runtime.pieces import PieceByPiece, of_piece
from gradwire.runtime.sums import Sum, heeds, sum_all
from gradwire.strategy import (
    Compressor,
    Key,
    Recurrence,
    Sections,
    State,
    StepInfo,
    Strategy,
)


class Shards:
    """Buffers, layouts and the owner's memory of one bucket on one rank.

    codec: the bucket's; its verdict judges all that arrives. rank, world: among the owners.
    pieces: the cut of each parameter; by default `Pieces.of` cuts evenly. means: the compressor of
    the owners, if another one. states: each parameter's state, for the residual of the owner's
    compression; None: owners keep no residual.
    """

    def __init__(
        self, codec: Codec, compressor: Compressor, rank: int, world: int,
        pieces: Sequence[Pieces] | None = None, means: Compressor | None = None,
        states: Sequence[State] | None = None,
    ) -> None:  # fmt: skip
        self._codec, self._verdict, device = codec, codec.verdict, codec.device
        self._compressor, self.rank, self.world = compressor, rank, world
        self.means_by = means or compressor
        self._states: Sequence[State] = states or [{} for _ in codec.states]
        plan = ShardLayout.of(compressor, codec.bucket, world, pieces, self.means_by)
        self.pieces, self.layouts, sizes = plan.pieces, plan.layouts, plan.sizes
        self._inbox, self._answers = Inbox([plan.layouts[rank]] * world), Inbox(plan.answers)
        self._sent = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        self._move = plan.outgoing(self._sent, rank)
        messages: Sequence[Tensor] = torch.split(self._sent, list(sizes))
        self._header = Header(*messages)
        views = [layout.views(message) for layout, message in zip(self.layouts, messages)]
        self.sections = [
            tuple(s for owner in pieces.owners() for s in views[owner][p])
            for p, pieces in enumerate(self.pieces)
        ]
        self._mine = torch.zeros(plan.answer_bytes, dtype=torch.uint8, device=device)
        self._my_header = Header(self._mine)
        own = plan.answers[rank]
        self._my_sections = own.views(self._mine[: own.bytes])
        owned = [end - begin for begin, end in (own.of_owner(rank) for own in self.pieces)]
        room = [padded(size * 4) // 4 for size in owned]
        self._all_means = torch.zeros(sum(room), device=device, dtype=torch.float32)
        self.means = [x[:n] for x, n in zip(torch.split(self._all_means, room), owned)]
        rule = None if states is None else Recurrence(state=OWNERS_RESIDUAL)
        self._encoders = [make_encoder(self.means_by, None, rule) for _ in self.pieces]
        self._encoded = False  # whether this step's encoders have seen the means
        self._known, self._known_sums, self._known_means = Known(), Known(), Known()

    def compressors(self) -> list[PieceByPiece]:
        """Returns the compressor that encodes each parameter for its owners."""
        return [PieceByPiece(self._compressor, p.bounds) for p in self.pieces]

    def begin(self) -> None:
        """Begins a new step."""
        self._encoded = False

    def open(self) -> Tensor:
        """Writes the header. Returns its status, for what encodes into the sections next."""
        self._header.write(self._codec.digest, self._codec.info.step)
        return self._header.status

    def outgoing(self) -> AllToAll:
        """Returns the first move. Call it when the sections are encoded."""
        self._header.spread()
        return self._move

    def average(self, arrived: Tensor) -> None:
        """Computes the means of the owner's pieces, if all is well.

        A damaged payload only raises the verdict: others must be notified before this rank stops.
        """
        inbox, size = self._inbox, self._inbox.bytes
        if arrived.numel() != self.world * size:
            check_size(arrived, self.world, size)
        messages = arrived.view(self.world, size)
        self._verdict.hear(inbox.headers(messages))
        word = self._verdict.word
        if heeds(self._compressor, word):
            self._sum(inbox.payloads(messages), word)
        else:
            run_unless(word, lambda: self._sum(inbox.payloads(messages)))

    def _sum(self, payloads: Sequence[Sequence[Sections]], word: Tensor | None = None) -> None:
        codec, rank = self._codec, self.rank
        sums = []
        for name, pieces, mean, parts in zip(
            codec.bucket.names, self.pieces, self.means, payloads
        ):
            key = Key(codec.seed, codec.info.step, name, rank)
            key = of_piece(key, pieces.number_of(rank))
            sums.append(Sum(parts, mean, self.world, key, name))
        try:
            sum_all(self._compressor, sums, word, self._known_sums)
        except PayloadError as error:
            self._verdict.refuse(error)

    def spoil_means(self) -> None:
        """Sets the owner's means to NaN if not all is well."""
        spoil_if(self._verdict.word, self._all_means)

    def answer(self) -> Tensor:
        """Compresses the owner's means, if all is well. Returns the message for all. Where the
        host does not check that, an encoding made in vain is undone with the step."""
        header, word = self._my_header, self._verdict.word
        header.write(self._codec.digest, self._codec.info.step)
        header.status.copy_(word)
        if heeds(self._compressor, word):
            self._encode_means(header.status)
        else:
            run_unless(word, lambda: self._encode_means(header.status))
        return self._mine

    def _encode_means(self, status: Tensor) -> None:
        plain = StepInfo(self._codec.info.step)
        keys = [self._key_of_mean(name, self.rank) for name in self._codec.bucket.names]
        work = zip(self._encoders, self.means, self._states, keys, self._my_sections)
        self._encoded = True
        together(
            (
                encoder.work(Own(mean, state, plain, key), sections, status)
                for encoder, mean, state, key, sections in work
            ),
            status,
            self._known,
        )

    def _key_of_mean(self, name: str, owner: int) -> Key:
        codec = self._codec
        return Key(codec.seed, codec.info.step, f"{name}/mean of {owner}", owner)

    def hear(self, messages: Tensor) -> None:
        """Checks the headers of all owners' messages, (world, bytes), for the verdict."""
        self._answers.check(messages)
        self._verdict.hear(self._answers.headers(messages))

    def collect(
        self, messages: Tensor, results: Sequence[Tensor], word: Tensor | None = None
    ) -> None:
        """Decodes every owner's message into the results. Raises PayloadError. word: the status of
        `sum_all`."""
        sums = []
        named = zip(self._codec.bucket.names, self.pieces, results)
        for (name, pieces, result), payloads in zip(named, self._answers.payloads(messages)):
            for owner, payload in enumerate(payloads):
                part = result[slice(*pieces.of_owner(owner))]
                key = self._key_of_mean(name, owner)
                whence = f"payload 0 is the mean from rank {owner}"
                sums.append(Sum([payload], part, 1.0, key, name, whence))
        sum_all(self.means_by, sums, word, self._known_means)

    def undo(self) -> None:
        """Restores the owner's state to what it was before this step."""
        work = zip(self._encoders, self.means, self._states, self._my_sections)
        if self._encoded:
            undo_many_topk([
                left for encoder, mean, state, sections in work
                for left in encoder.undoing(mean, state, sections, StepInfo())
            ])  # fmt: skip
        self._encoded = False

    def end(self, outcome: Outcome) -> None:
        """Ends the step, after all its buckets."""
        if outcome == "skipped":
            self.undo()  # the owner's sums are in what is given back
        for encoder in self._encoders:
            encoder.release()
        self._encoded = False


def remembers(strategy: Strategy) -> bool:
    """Whether what is not sent is added to a later step."""
    return strategy.feedback is not None and strategy.feedback.makes_good
