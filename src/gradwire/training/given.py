"""Checks that a gradient is what was attached."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Parameter
from gradwire.errors import UsageError


def check_gradient(parameter: Parameter, gradient: Tensor, device: torch.device) -> None:
    """Raise UsageError unless the gradient has the dtype, size, device and layout that the
    parameter had when it was attached, and can be written to."""
    found = gradient.dtype, gradient.numel(), gradient.device
    if found != (getattr(torch, parameter.dtype), parameter.elements, device):
        dtype = str(gradient.dtype).removeprefix("torch.")
        raise UsageError(
            "an attached parameter's dtype, size and device must not change; "
            f"'{parameter}' was {parameter.dtype} of "
            f"{parameter.elements} elements on {device}, and its gradient is {dtype} of "
            f"{gradient.numel()} on {gradient.device}. Detach, convert or move the module, and "
            "attach it then."
        )
    dense = gradient.layout == torch.strided
    if not dense and not (kernels.is_rows(gradient) and parameter.sparse):
        raise UsageError(
            "a gradient must be dense, or one of sparse rows of an nn.Embedding or "
            f"nn.EmbeddingBag with sparse=True; that of '{parameter}' is "
            f"{gradient.layout} with {gradient.sparse_dim()} sparse dimensions. Use one of these "
            "modules, or make the gradient dense."
        )
    steps = gradient.stride() if dense else ()
    if 0 in steps and any(n > 1 and not step for n, step in zip(gradient.shape, steps)):
        raise UsageError(
            "the average is written into .grad, where each element must have memory of its own; "
            f"that of '{parameter}' is expanded, with strides {tuple(steps)}. Set .grad to "
            "gradient.contiguous()."
        )
