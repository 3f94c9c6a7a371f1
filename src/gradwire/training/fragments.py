"""Parts of a model whose progress is exchanged together; see `local_steps`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.errors import PlanError, UsageError
from gradwire.optim.sgd import SGD
from gradwire.strategy import Strategy
from gradwire.training.agreed import same_everywhere
from gradwire.training.attach import Handle, attach_plan
from gradwire.training.module import ModuleFrontend
from gradwire.training.state import checked


class Fragment:
    """Parameters that are exchanged together, with their anchors and the outer optimizer."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], plan: str | Strategy,
        process_group: dist.ProcessGroup | None, outer: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.parameters = dict(parameters)
        self.under_way, self.launched_at = False, 0
        self._left: dict[str, Tensor] | None = None  # at launch, if training goes on meanwhile
        self.anchors = Anchors(parameters)
        self.handle: Handle = attach_plan(self.anchors, plan, process_group, **options)
        self.handle._check.tells_unknown = False
        self.outer = SGD(self.anchors.parameters(), **outer)
        frontend, session = self.handle._frontend, self.handle._session
        assert isinstance(frontend, ModuleFrontend)
        self._frontend, self._session = frontend, session
        self.group = session.performers[0].group
        self._copy_back()

    @torch.no_grad()
    def launch(self, step: int, trains_on: bool = False) -> None:
        """Begin to exchange this rank's progress until that step. Collective; returns at once.

        trains_on: whether steps are taken before `land`. What they bring stays.
        """
        self._session.refuse_failed()
        self.launched_at = step
        self._left = {n: p.clone() for n, p in self.parameters.items()} if trains_on else None
        for name, anchor in self.anchors.named_parameters():
            anchor.grad = self._began_at(name, anchor) - self.parameters[name].to(anchor.dtype)
        self._frontend.launch()
        self.under_way = True

    def land(self) -> None:
        """Wait for the exchange, take the outer step, and set the parameters to its result, plus
        how far they have moved since the launch. A round in which any rank's progress is not
        finite is dropped: all return to the anchors."""
        self._frontend.land()
        self.under_way = False
        try:
            self._step()
        except BaseException as error:  # the other ranks have stepped
            self._session.fail(error)
            raise

    @torch.no_grad()
    def _step(self) -> None:
        if self._session.ledger.finite:
            self.outer.step()
        else:
            self._left = None
            warnings.warn(
                "a rank's weights were not finite, so this round is dropped and all ranks go back "
                "to the weights before it; its optimizer's state may still be NaN or inf. Lower "
                "the learning rate, or restart from a checkpoint.",
                stacklevel=2,
            )
        self.outer.zero_grad()
        self._copy_back()

    @torch.no_grad()
    def _copy_back(self) -> None:
        left, self._left = self._left, None
        for name, anchor in self.anchors.named_parameters():
            here = self.parameters[name]
            if left is None:
                here.copy_(anchor)
            else:
                here.copy_(anchor + (here.to(anchor.dtype) - left[name].to(anchor.dtype)))

    def _began_at(self, name: str, anchor: Tensor) -> Tensor:
        """Returns where a parameter's local steps began: at its anchor, rounded as `_copy_back`
        left it there. Else each exchange would take the rounding back, and with it what the mean
        moves by less than half a step of a 16-bit format."""
        return anchor.to(self.parameters[name].dtype).to(anchor.dtype)

    def same_on_all(self, **rounds: Any) -> None:
        """Raise PlanError unless all ranks have the same values by which rounds go. Collective."""
        same_everywhere(
            self.group, self._session.device, lambda: rounds,
            lambda own: ", ".join(f"{name}={value}" for name, value in own.items()),
            "all ranks must take the same local steps",
            "Pass the same values to LocalSteps on every rank.",
        )  # fmt: skip

    def mean_of(self, number: int) -> int:
        """Returns the mean of a number over the ranks, rounded. Collective."""
        own = torch.tensor([float(number)], device=self._session.device, dtype=torch.float32)
        return round(float(self._session.summed(own, "steps to a round")) / self._session.world)

    def refuse_failed(self) -> None:
        """Raise UsageError once an exchange failed, as this rank would train on alone."""
        self._session.refuse_failed()

    @torch.no_grad()
    def refuse_moved(self, among: Container[int]) -> None:
        """Raise UsageError if a parameter with one of these ids has left its anchor.

        Others belong to another optimizer, which may have stepped. NaN passes, as `land` checks
        it. 1 % allows for the rounding of optimizers that swap weights for an evaluation and back.
        """
        differ = dict[str, Tensor]()
        for name, anchor in self.anchors.named_parameters():
            here = self.parameters[name]
            if id(here) in among:
                far = torch.linalg.vector_norm(self._began_at(name, anchor) - here)
                differ[name] = far > 0.01 * torch.linalg.vector_norm(anchor)
        if differ and torch.stack(list(differ.values())).any():  # one wait for the device
            name = next(name for name, moved in differ.items() if moved)
            raise UsageError(
                "with local steps only the optimizer may change the weights between two "
                f"exchanges; '{name}' was changed otherwise. Call reset() after loading weights; "
                "load a state of local steps together with the model's own; do what follows each "
                "step, such as clipping weights, in the optimizer's register_step_post_hook, "
                "registered before LocalSteps is made."
            )

    def drop(self) -> None:
        """Wait for an exchange that is under way, and drop its result."""
        if self.under_way:
            self._frontend.land()
            self.under_way, self._left = False, None
            self.outer.zero_grad()

    def close(self) -> None:
        """Stop exchanging. One that is under way ends first, as ranks stop at different points of
        it, and lanes would wait for each other; its result is dropped, and so are its errors."""
        with suppress(Exception):
            self.drop()
        self.handle.detach()

    @torch.no_grad()
    def reset(self, step: int) -> None:
        """Start anew after that step, with the current parameters as anchors."""
        self.handle.reset()
        self.outer.state.clear()
        self.launched_at = step
        for name, anchor in self.anchors.named_parameters():
            anchor.copy_(self.parameters[name])

    def state_dict(self) -> dict[str, Any]:
        """Returns its state, between exchanges. Raises UsageError amid one."""
        if self.under_way:
            raise UsageError(
                "a state can be saved only between exchanges; one is under way. Call "
                "synchronize() first, or save more than `delay` steps after a round."
            )
        anchors = {name: a.detach() for name, a in self.anchors.named_parameters()}
        return {
            "anchors": anchors, "outer": self.outer.state_dict(), "kept": len(self.outer.state),
            "launched_at": self.launched_at, "gradwire": self.handle.state_dict(),
        }  # fmt: skip

    def checked(self, states: Sequence[Mapping[str, Any]], strict: bool) -> Callable[[], None]:
        """Check states, raising UsageError or PlanError if they do not fit; returns a function
        that loads them. Call `drop` before that function."""
        first = states[0]
        outer, kept = first["outer"], first["kept"]
        groups = self.outer.state_dict()["param_groups"]
        momenta = outer.get("state") if isinstance(outer, Mapping) else outer
        outer = {"state": momenta, "param_groups": groups}
        self.outer.check_state_dict(outer)
        if len(outer["state"]) != kept:
            raise UsageError(
                f"the outer optimizer's state must have all momenta that were saved, {kept}; got "
                f"{len(outer['state'])}. Save by torch.save, a file per rank: "
                "torch.distributed.checkpoint.load fills only tensors that exist already."
            )
        for own in states:
            self._check_anchors(own["anchors"])
        remember = checked(self._session, [own["gradwire"] for own in states], strict=strict)

        @torch.no_grad()
        def take_over() -> None:
            remember()
            self.launched_at = first["launched_at"]
            # Copies: momenta are written to in place, and a state may be loaded again.
            self.outer.load_state_dict(copy.deepcopy(outer))
            for name, anchor in self.anchors.named_parameters():
                anchor.copy_(first["anchors"][name])

        return take_over

    def _check_anchors(self, saved: Mapping[str, Tensor]) -> None:
        here = dict(self.anchors.named_parameters())
        for name in {**here, **saved}:
            if name in saved and not saved[name].isfinite().all():
                raise PlanError(
                    f"the weights of the last exchange must be finite; '{name}' is not. Load an "
                    "earlier checkpoint."
                )
            shapes = [list(of[name].shape) if name in of else "none" for of in (saved, here)]
            if shapes[0] != shapes[1]:
                raise PlanError(
                    "a fragment must have the parameters and shapes that it was saved with; "
                    f"'{name}' has {shapes[0]} in the state, {shapes[1]} here. Load the state of "
                    "this very model, with the same fragments."
                )


class Anchors(nn.Module):
    """The values that all ranks' parameters had after the last exchange: copies under the same
    names, in fp32, or in the parameter's own dtype if that is wider."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self._named = {
            name: nn.Parameter(
                p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            )
            for name, p in parameters.items()
        }

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields all of them, without nesting."""
        yield from self._named.items()


def split(named: Mapping[str, nn.Parameter], count: int) -> list[dict[str, nn.Parameter]]:
    """Returns the parameters, in order, in `count` parts of about equal size. count: at most the
    number of parameters."""
    total, parts, begun = sum(p.numel() for p in named.values()), list[dict[str, Any]](), 0
    for i, (name, p) in enumerate(named.items()):
        left = count - len(parts)
        full = begun + p.numel() / 2 >= len(parts) * total / count  # less than half would fit
        if left and (full or len(named) - i == left):
            parts.append({})
        parts[-1][name] = p
        begun += p.numel()
    return parts
