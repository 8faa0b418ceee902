"""Runs one rank of an emitted program: cuts its shards, calls a function, returns its results.

run_attention   attention(q, k, v), and its gradients if dout is given
run_forward     forward(q, k, v): out and lse
run_backward    backward(dout, q, k, v, out, lse): dq, dk, dv

All three functions also take sinks.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ringloom.runtimes.arrays import Array, dtype_of, sum_dtype_of
from ringloom.runtimes.emitted import SIDES

Parts = list[Array]  # a rank's shard of each result
Body = Callable[..., Parts]  # takes a program, a group, arrays and perhaps sinks


def to_torch(array: Array) -> Any:
    """Returns a tensor with the same bits; converts bfloat16 by way of int16."""
    array = np.ascontiguousarray(array)
    if array.dtype == dtype_of("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> Array:
    """Returns an array with the same bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(dtype_of("bfloat16")))
    return np.asarray(tensor.numpy())


def shards(program: ModuleType, rank: int, arrays: Sequence[Array]) -> list[Any]:
    """Returns a rank's shards of q, k, v and of dout, out and lse if given."""
    pairs = zip(arrays, SIDES, strict=False)
    return [program.shard(to_torch(x), rank, side=side) for x, side in pairs]


def run_attention(
    program: ModuleType, group: Any, arrays: Sequence[Array], sinks: Array | None = None
) -> Parts:
    """Returns out; if dout is given, also dq, dk, dv and this rank's contribution to dsinks."""
    *qkv, dout = (*shards(program, group.rank(), arrays), None)[:4]
    inputs = [x.requires_grad_(dout is not None) for x in (*qkv, *_logits(sinks))]
    options = {"sinks": inputs[3]} if len(inputs) > 3 else {}
    out = program.attention(*inputs[:3], group=group, seq=arrays[0].shape[2], **options)
    if dout is None:
        return [to_numpy(out)]
    return [to_numpy(x) for x in (out, *torch.autograd.grad(out, inputs, dout))]


def run_forward(
    program: ModuleType, group: Any, arrays: Sequence[Array], sinks: Array | None = None
) -> Parts:
    """Runs the forward pass; returns out and lse [batch, heads, tokens, 1]."""
    inputs = *shards(program, group.rank(), arrays), *_logits(sinks)
    out, lse = program.forward(*inputs, group.group_name, "", "", -1)[:2]
    return [to_numpy(out), to_numpy(lse)]


def run_backward(
    program: ModuleType, group: Any, arrays: Sequence[Array], sinks: Array | None = None
) -> Parts:
    """Runs the backward pass alone on q, k, v, dout, out, lse; returns dq, dk, dv and dsinks."""
    q, k, v, dout, out, lse = shards(program, group.rank(), arrays)
    saved = [q, k, v, *_logits(sinks), out, lse]
    return [to_numpy(x) for x in program.backward(dout, saved, group.group_name)]


def _logits(sinks: Array | None) -> list[Any]:
    """Returns sinks in the dtype of partial sums, so that partial dsinks are not rounded."""
    return [] if sinks is None else [to_torch(sinks.astype(sum_dtype_of(sinks.dtype.name)))]


ENTRY_POINTS: dict[str, Body] = {
    "attention": run_attention,
    "forward": run_forward,
    "backward": run_backward,
}
