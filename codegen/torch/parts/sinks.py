"""Attention with sinks: a logit per query head in each softmax, beside those of the keys."""

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.merge import merge, wide


def sunk(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Results as if each of these heads had seen a key more, with its sink's logit and no value."""
    whole, lse = out.to(wide(out), copy=True), lse.clone()
    merge(whole, lse, torch.zeros_like(whole), sinks.to(lse.dtype)[:, None, None])
    return whole.to(out.dtype), lse


def sink_gradient(dout: Tensor, sinks: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """The share of these queries in the gradient of the sinks."""
    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1, keepdim=True)
    weights = (sinks.to(lse.dtype)[:, None, None] - lse).exp().nan_to_num(0.0)
    return -(weights * delta).sum((0, 2, 3)).to(sinks.dtype)
