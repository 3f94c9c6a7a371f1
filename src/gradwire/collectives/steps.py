"""steps: any path through the decision tree, task by task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.errors import StrategyError
from gradwire.pairs import Parts
from gradwire.strategy import Collective, Context, Feedback, Rounds
from gradwire.tasks import Path


@dataclass(frozen=True)
class Steps(Collective):
    """Follows a path of compress, decompress and moves, as planners choose it for a tensor.

        compress@gpu, all_to_all@node, decompress@gpu, all_reduce@cross, all_gather@node

    Tasks in order; `gradwire.tasks` has the rules, and its `paths` lists all 4,341 paths.
    A move without @ is among all ranks; @node is inside a machine, @cross across machines, among
    ranks of the same local number. compress@cpu works in the host's memory, compress@gpu on the
    gradient's device: without a GPU the two are the same.
    Every sum is divided at once, so a later compression gets a mean, in the gradient's unit.
    The first compression has the strategy's feedback; if there is one, each later compression
    keeps a residual of its own. Uncompressed data travels in the gradient's dtype.
    Roots are the first rank of a machine, and for those of one local number a machine of its own.
    per_node: ranks of a machine, for a path with @node; 0: as `attach` finds them, while
    `lockstep` puts all ranks on one.
    Memory: the bucket twice, and its messages.
    Source: Wang et al. 2023, "Hi-Speed DNN Training with Espresso", section 4.2 and table 3.
    """

    path: str
    per_node: int | None = 0
    name: ClassVar[str] = "steps"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise StrategyError(
                f"steps' path must be a list of tasks, as text; got {self.path!r}. Use for "
                'example steps("reduce_scatter, all_gather").'
            )
        tasks, per_node = Path.parse(self.path), self.per_node or 0
        number = isinstance(per_node, int) and not isinstance(per_node, bool)
        if not number or per_node < 0 or (per_node and not tasks.knows_machines):
            raise StrategyError(
                "steps' per_node must be a number of ranks, for a path with @node; got "
                f"per_node={per_node!r} and '{tasks}'. Leave it out, and attach finds the "
                "machines."
            )
        facts = {
            "path": str(tasks), "tasks": tasks, "compresses_again": tasks.compressions > 1,
            "needs": ("fixed",) if tasks.compressions else (),
            "per_node": per_node if tasks.knows_machines else None,
        }  # fmt: skip
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def __str__(self) -> str:
        return super().__str__().replace(", per_node=None", "")

    def check(self, parts: Parts) -> None:
        feedback = parts.feedback
        if "compress@" not in self.path and feedback is not None:
            raise StrategyError(
                f"feedback needs a path that compresses; '{self.path}' never does, but has "
                f"'{feedback}' beside it. Use 'none | {self}'."
            )
        if feedback is not None and type(feedback).received is not Feedback.received:
            raise StrategyError(
                f"steps needs feedback that acts only on what is sent, part by part; '{feedback}' "
                f"acts on the whole average. Use ef or dgc, for example '{parts.compressor}+ef | "
                f"{self}'."
            )
        opens = feedback is not None and type(feedback).opening is not Feedback.opening
        if opens and not self.path.startswith("compress@"):
            raise StrategyError(
                f"'{feedback}' measures each rank's own gradient, so its path must begin with "
                f"compress; '{self.path}' compresses sums of several ranks. Use '{parts.left} | "
                "allgather', or ef instead."
            )

    def rounds(self, ctx: Context) -> Rounds[None]:
        yield from ctx.along_path()
