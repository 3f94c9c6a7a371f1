"""Which parameters Muon takes: the matrices between a model's embeddings and its last layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from gradwire.training.trainable import unwrapped


def hidden_matrices(module: nn.Module) -> list[str]:
    """Names of the hidden matrices, in order: all trainable parameters of two dimensions, but for
    those of embeddings, those of the last `torch.nn.Linear` that is registered, which is a
    model's head, and those that share memory with either."""
    whole = unwrapped(module)
    linear = [child for child in whole.modules() if isinstance(child, nn.Linear)]
    ends = [
        child for child in whole.modules()
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) or child in linear[-1:]
    ]  # fmt: skip
    outside = {id(p) for end in ends for p in end.parameters()}
    return [
        name for name, p in whole.named_parameters()
        if p.requires_grad and p.dim() == 2 and id(p) not in outside
    ]  # fmt: skip


def others(module: nn.Module, optimizer: Any = None) -> list[str]:
    """Names of all trainable parameters that are not Muon's: as the optimizer's groups say it, if
    it is `gradwire.optim.Muon`; else all but the hidden matrices."""
    groups = [g for g in getattr(optimizer, "param_groups", ()) if "muon" in g]
    named = [(n, p) for n, p in unwrapped(module).named_parameters() if p.requires_grad]
    if not groups:
        hidden = set(hidden_matrices(module))
        return [name for name, _ in named if name not in hidden]
    taken = {id(p) for group in groups if group["muon"] for p in group["params"] if p.dim() == 2}
    return [name for name, p in named if id(p) not in taken]
