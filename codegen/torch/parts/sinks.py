"""Attention with sinks: a logit per query head in each softmax, beside those of the keys.

Instead of `operator` and `gradients` of other parts, under the same names.
"""

import torch
from torch import Tensor

from codegen.torch.parts.function import digest, group_named
from codegen.torch.parts.merge import merge, wide
from codegen.torch.parts.stubs import backward, forward


@torch.library.custom_op(f"ringloom::attention_{digest}", mutates_args=())
def operator(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, group: str) -> list[Tensor]:
    return [*forward(q, k, v, sinks, group_named(group))]


@torch.library.custom_op(f"ringloom::attention_backward_{digest}", mutates_args=())
def gradients(dout: Tensor, saved: list[Tensor], group: str) -> list[Tensor]:
    q, k, v, sinks, *results = saved
    slopes = backward(*[dout, q, k, v, *results, group_named(group)])
    return [*slopes, sink_gradient(dout, sinks, *results[:2])]


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
