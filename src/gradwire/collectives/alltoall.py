"""alltoall: every rank owns a part of the sum. Two moves, 2(n-1)/n·b bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from gradwire.collectives._owners import through_owners
from gradwire.errors import StrategyError
from gradwire.pairs import Parts, check_promises
from gradwire.strategy import Collective, Compressor, Context, Evidence, Member, Rounds


@dataclass(frozen=True)
class AllToAllSum(Collective):
    """Sends pieces to owners, which sum in fp32 and compress again; all gather the results.

        rank r:  pieces ──► owner: decode, sum in rank order, ÷ n, encode ──► everybody

    As many bytes per rank as a ring all-reduce of the codes, whatever the number of ranks;
    `allgather` sends n/2 times as many. With feedback, the owner keeps a residual of the second
    compression. Scales are per piece.
    means: the text of a compressor for the second compression; "": the same as the first. A rank's
    own view lacks the owners' residuals, so a finer one may be worth its bytes.
    Source: Tang et al. 2021, "1-bit Adam", section 4; Wang et al. 2023, "ZeRO++", section 3.3.
    """

    means: str = ""
    name: ClassVar[str] = "alltoall"
    needs: ClassVar[tuple[str, ...]] = ("fixed",)
    compresses_again: ClassVar[bool] = True
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence(
            'lloyd(1)+adam(beta2=0.99) | alltoall(means="qsgd")', "adamw", True, "gpt",
            "adam-1-warm-alltoall-4", warmup=0.1, begins="lloyd(2) | allgather",
        ),
        Evidence(
            'lloyd(1)+adam(beta2=0.99) | alltoall(means="lloyd(2)")', "adamw", True, "gpt",
            "adam-1-warm-alltoall-2", warmup=0.1, begins="lloyd(2) | allgather",
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.means, str):
            raise StrategyError(
                f"alltoall's means must be a compressor, as text; got {self.means!r}. Use for "
                'example alltoall(means="qsgd(4)").'
            )
        try:
            # Normalized text, so that equal collectives compare equal.
            object.__setattr__(self, "means", str(self.of_means or ""))
        except StrategyError as error:
            raise StrategyError(
                f"alltoall's means must be a compressor with payloads of a fixed size: {error}"
            ) from error
        lossy = self.of_means is not None and not self.of_means.claims(1 << 20).exact
        object.__setattr__(self, "selects", lossy)  # whatever the first compressor promises

    @cached_property
    def of_means(self) -> Compressor | None:
        """The compressor of owners; None: the strategy's own."""
        if not self.means:
            return None
        own: Compressor = Compressor.parse(self.means)
        check_promises(Parts(own, AllToAllSum()))  # refuses a compressor without a fixed size
        return own

    def check(self, parts: Parts) -> None:
        kinds = [c.claims(1 << 20).direction for c in (parts.compressor, self.of_means) if c]
        if len(set(kinds)) > 1:
            raise StrategyError(
                "alltoall's two compressors must both send sizes, or both only directions; of "
                f"'{parts.compressor}' and '{self.means}' one sends directions, without a "
                f"size. Use '{parts.left} | alltoall'."
            )

    def is_as_fine_as(self, other: Member) -> bool:
        if not isinstance(other, AllToAllSum):
            return False
        own, theirs = self.of_means, other.of_means
        if own is None or theirs is None:
            return own is theirs
        return type(own) is type(theirs) and own.is_as_fine_as(theirs)

    def rounds(self, ctx: Context) -> Rounds[None]:
        yield from through_owners(ctx, self.of_means)
