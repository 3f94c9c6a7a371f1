"""Muon: orthogonal steps for hidden matrices, AdamW's steps for the rest.

The optimizer or an attached plan keeps the momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim._muon import muon
from torch.optim.adamw import adamw

from gradwire.errors import UsageError
from gradwire.feedback._orthogonal import COEFFICIENTS, LEAST_NORM, TURNS
from gradwire.optim._kept import AsksThePlan, check_keeper, step_kept
from gradwire.optim._states import BELOW_1, RATE, Like, Single, are_betas, check, is_from_0
from gradwire.schema import Flag, Number, Row, Schema, Table, Whole
from gradwire.strategy import Feedback
from gradwire.training.trainable import hidden_matrices, named


class Muon(AsksThePlan):
    """`torch.optim.Muon` for hidden matrices and `torch.optim.AdamW` for the rest, in one
    optimizer.

        optimizer = gradwire.optim.Muon.of(model, lr=1e-3)
        gradwire.attach(model, "lloyd(2)+muon | alltoall", optimizer=optimizer)

        not attached, or ef:     torch's own steps
        muon, which sent u:      w -= lr·λ·w;    w -= lr·u

    One learning rate serves both: an orthogonal step is made as large as AdamW's
    (`torch.optim.Muon` with adjust_lr_fn="match_rms_adamw"). A parameter whose momentum the plan
    keeps has no state here.

    Args:
        params: parameters, or groups of them. A group with muon=False is stepped by AdamW, and so
            is a parameter that is no matrix, in any group.
        lr, weight_decay: of both. momentum, nesterov: of Muon. betas, eps: of AdamW.
        turns: a hidden matrix takes an orthogonal step only once in so many steps, and so many
            times as far; others take theirs meanwhile. Its momentum follows all gradients. That
            saves orthogonal steps, which with small batches take most of a step's time. Where an
            attached plan keeps the momentum, the plan has the turns: `muon(turns=4)`.
        momentum_kept: whether `.grad` holds steps already, for averages that come from elsewhere.
            By default the attached plan decides, parameter by parameter.

    Raises:
        UsageError: a number is out of its range; or, at a step, the plan keeps moments of another
            rule or with other numbers.
    Source: Jordan et al. 2024, "Muon"; Liu et al. 2025, "Muon is scalable for LLM training".
    """

    update_rule = "orthogonal"

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 0.1, *, momentum: float = 0.95,
        nesterov: bool = True, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        turns: int = 1, momentum_kept: bool | None = None,
    ) -> None:  # fmt: skip
        numbers = {"lr": lr, "weight_decay": weight_decay, "eps": eps}
        wrong = [f"{k}={v!r}" for k, v in numbers.items() if not is_from_0(v)]
        wrong += [] if is_from_0(momentum, 1.0) else [f"momentum={momentum!r}"]
        wrong += [] if are_betas(betas) else [f"betas={betas!r}"]
        if type(turns) is not int or turns < 1:
            wrong.append(f"turns={turns!r}")
        if wrong:
            raise UsageError(
                "Muon's lr, weight_decay and eps must be at least 0, its momentum and both "
                "betas at least 0 and below 1, its turns a whole number of at least 1; got "
                f"{', '.join(wrong)}. Use for example Muon.of(model, lr=1e-3)."
            )
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "betas": tuple(betas), "eps": eps, "muon": True, "turns": turns, "turn": 0,
        })  # fmt: skip
        self._kept = momentum_kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # states that were saved before there were turns
            group.setdefault("turns", 1)
            group.setdefault("turn", 0)

    @classmethod
    def of(cls, module: nn.Module, **options: Any) -> Muon:
        """Make an optimizer for all trainable parameters of a model, with Muon for its hidden
        matrices.

        Hidden matrices are those that belong neither to an embedding nor to the last Linear that
        is registered, the head. options: those of the class.
        """
        names = set(hidden_matrices(module))
        trained = [(name, p) for name, p in named(module) if p.requires_grad]
        hidden = [p for name, p in trained if name in names]
        others = [p for name, p in trained if name not in names]
        groups = [{"params": hidden, "muon": True}, {"params": others, "muon": False}]
        return cls([group for group in groups if group["params"]], **options)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state. Raises UsageError, and changes nothing, if it is that of another
        optimizer, such as torch's Muon, whose rate means another length, or is incomplete."""
        check(self, state_dict, _GROUP, _state_of)
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with `.grad`. Not collective."""
        loss = self._closed(closure)
        parted = self._all_parted()
        for group, _, own in parted:
            for p in own:
                _check_plain(p, group)
        for group, kept, own in parted:
            step_kept(kept, group)
            self._orthogonal([p for p in own if is_muon_s(p, group)], group)
            self._adaptive([p for p in own if not is_muon_s(p, group)], group)
        return loss

    def _orthogonal(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        parameters = self._whose_turn_it_is(parameters, group)
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        if parameters:
            muon(
                parameters, _gradients(parameters), buffers, lr=group["lr"] * group["turns"],
                weight_decay=group["weight_decay"], momentum=group["momentum"],
                nesterov=group["nesterov"], ns_coefficients=COEFFICIENTS, ns_steps=TURNS,
                eps=LEAST_NORM, adjust_lr_fn="match_rms_adamw", has_complex=False,
            )  # fmt: skip

    def _whose_turn_it_is(self, parameters: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Returns those that step now. The momentum of the others follows their gradients."""
        if group["turns"] == 1:
            return parameters
        turn_of = _turns([p for p in group["params"] if is_muon_s(p, group)], group["turns"])
        now, group["turn"] = group["turn"], (group["turn"] + 1) % group["turns"]
        resting = [p for p in parameters if turn_of[p] != now]
        if resting:
            momenta = [self.state[p]["momentum_buffer"] for p in resting]
            torch._foreach_lerp_(momenta, _gradients(resting), 1 - group["momentum"])
        return [p for p in parameters if turn_of[p] == now]

    def _adaptive(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        names = "exp_avg", "exp_avg_sq", "step"
        for p in parameters:
            if "step" not in self.state[p]:
                step = torch.zeros((), dtype=torch.float32)
                zeros = torch.zeros_like(p), torch.zeros_like(p), step
                self.state[p].update(zip(names, zeros))
        states = ([self.state[p][name] for p in parameters] for name in names)
        firsts, seconds, steps = states
        if parameters:
            adamw(
                parameters, _gradients(parameters), firsts, seconds, [], steps, amsgrad=False,
                beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
                weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
                has_complex=any(map(torch.is_complex, parameters)),
            )  # fmt: skip

    def _check(self, keeper: Feedback, parameter: Tensor, group: dict[str, Any]) -> None:
        if is_muon_s(parameter, group):
            owner = f"Muon, for a matrix of {[*parameter.shape]},"
            check_keeper(keeper, "orthogonal", parameter, group, owner)
            if group["turns"] > 1:
                raise UsageError(
                    f"a plan that keeps Muon's momentum, as '{keeper}', decides whose turn it is; "
                    f"Muon has turns={group['turns']}. Leave turns out of the optimizer, and "
                    f"write it into the strategy: muon(turns={group['turns']})."
                )
        else:
            owner = "Muon, for what is no hidden matrix,"
            check_keeper(keeper, "adaptive", parameter, group, owner)


def is_muon_s(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether Muon steps this parameter, not AdamW."""
    return bool(group.get("muon", True)) and parameter.dim() == 2


def _check_plain(parameter: Tensor, group: dict[str, Any]) -> None:
    """Raise UsageError unless this optimizer can step a parameter by its `.grad`."""
    if parameter.grad is not None and parameter.grad.layout != torch.strided:
        raise UsageError(
            f"Muon needs dense gradients; that of a parameter of {[*parameter.shape]} is "
            f"{parameter.grad.layout}. Make its module with sparse=False, or give it an optimizer "
            "of its own, such as torch.optim.SparseAdam."
        )
    if is_muon_s(parameter, group) and parameter.is_complex():
        raise UsageError(
            f"Muon's orthogonal steps are for real matrices; one of {[*parameter.shape]} is "
            f"{parameter.dtype}. Put it into a group with muon=False, which AdamW steps."
        )


_GROUP = Table(
    {
        "lr": RATE, "weight_decay": Number(0, 1e9), "momentum": BELOW_1, "nesterov": Flag(),
        "betas": Row(BELOW_1, BELOW_1), "eps": Number(0, 1e9),
    },
    {"turns": Whole(1), "turn": Whole()},
)  # fmt: skip


def _state_of(parameter: Tensor, group: Mapping[str, Any]) -> Schema:
    like = Like(parameter)
    if is_muon_s(parameter, group):
        return Table({"momentum_buffer": like})
    return Table({"step": Single(Number(0, 1 << 48)), "exp_avg": like, "exp_avg_sq": like})


def _turns(matrices: Iterable[Tensor], turns: int) -> dict[Tensor, int]:
    """Returns the turn of each, so that all turns have about as many elements."""
    elements, found = [0] * turns, dict[Tensor, int]()
    for p in sorted(matrices, key=lambda p: -p.numel()):
        found[p] = elements.index(min(elements))
        elements[found[p]] += p.numel()
    return found


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]
