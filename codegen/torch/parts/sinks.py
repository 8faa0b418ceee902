"""Attention with sinks: a logit per query head in each softmax, beside those of the keys.

Instead of `attention`, `operator` and `gradients` of other parts, under the same names.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.function import digest, group_named
from codegen.torch.parts.merge import merge, wide
from codegen.torch.parts.stubs import backward, forward

RANKS = 1


# ---- The function to call, and its operators for compilers and checkpoint policies.


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sinks: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Exact attention of a sharded sequence; all ranks of the group call it together.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result has q's tokens and heads, and v's dim. sinks: [heads], the same on all ranks, whose
    gradient is this rank's share: sum it over the group. Raises ValueError for other shapes, mixed
    types or another group size.
    """
    group = group or dist.group.WORLD
    if group is None or group.size() != RANKS:
        raise ValueError(f"the program is for {RANKS} ranks, not {group and group.size()}")
    given = [([*x.shape], x.dtype, x.device) for x in (q, k, v)]
    shapes = [[*x.shape] for x in (q, k, v)]  # printed
    wanted = [(shape, q.dtype, q.device) for shape in shapes]
    if given != wanted or q.shape[1] % k.shape[1] or not q.is_floating_point():
        raise ValueError(f"q, k, v are {given}, not {wanted} of a float type")
    if sinks is None or [*sinks.shape] != [q.shape[1]]:
        raise ValueError(f"sinks are {sinks if sinks is None else [*sinks.shape]}, not [heads]")
    inputs = q.contiguous(), k.contiguous(), v.contiguous(), sinks.contiguous()
    out: Tensor = operator(*inputs, group.group_name)[0]
    return out


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
