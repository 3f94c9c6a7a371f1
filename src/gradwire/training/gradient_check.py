"""What may be exchanged as a parameter's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Parameter
from gradwire.errors import UsageError


def check(parameter: Parameter, gradient: Tensor, device: torch.device) -> None:
    """UsageError unless it is a gradient of the parameter that was attached, as it was then."""
    found = gradient.dtype, gradient.numel(), gradient.device
    if found != (getattr(torch, parameter.dtype), parameter.elements, device):
        dtype = str(gradient.dtype).removeprefix("torch.")
        raise UsageError(
            f"a parameter stays as it was attached; '{parameter}' was {parameter.dtype} of "
            f"{parameter.elements} elements on {device}, and its gradient is {dtype} of "
            f"{gradient.numel()} on {gradient.device}. Detach, and attach after the module was "
            "converted, cut or moved."
        )
    dense = gradient.layout == torch.strided
    if not dense and not (kernels.is_rows(gradient) and parameter.sparse):
        raise UsageError(
            "gradwire exchanges dense gradients, and whole rows with their ids of the weights of "
            f"nn.Embedding and nn.EmbeddingBag with sparse=True; that of '{parameter}' is "
            f"{gradient.layout} with {gradient.sparse_dim()} sparse dimensions. Use one of these "
            "modules, or make the gradient dense."
        )
