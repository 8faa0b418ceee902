"""Attention sinks: one more logit per query head in each softmax."""

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.merge import accum_dtype, merge


def apply_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Return results as if each head had one more key with the logit of its sink and value 0."""
    result, lse = out.to(accum_dtype(out), copy=True), lse.clone()
    merge(result, lse, torch.zeros_like(result), sinks.to(lse.dtype)[:, None, None])
    return result.to(out.dtype), lse


def sink_gradient(dout: Tensor, sinks: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """Return these queries' part of the gradient of the sinks."""
    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1, keepdim=True)
    weights = (sinks.to(lse.dtype)[:, None, None] - lse).exp().nan_to_num(0.0)
    return -(weights * delta).sum((0, 2, 3)).to(sinks.dtype)
