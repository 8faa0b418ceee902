"""One rank of an emitted program: cut its shards, call a function, return its results.

attend      attention(q, k, v), and its gradients where dout is given; all of them take sinks
ahead       forward(q, k, v): out and lse
back        backward(dout, q, k, v, out, lse): dq, dk, dv
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ringloom.runtimes.arrays import Array, dtype_of, wide
from ringloom.runtimes.emitted import SIDES

Parts = list[Array]  # what a rank has of each result
Body = Callable[..., Parts]  # of a program, a group, arrays and perhaps sinks


def to_torch(array: Array) -> Any:
    """Returns a tensor of the same bits; numpy and torch have no bfloat16 in common."""
    array = np.ascontiguousarray(array)
    if array.dtype == dtype_of("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> Array:
    """Returns an array of the same bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(dtype_of("bfloat16")))
    return np.asarray(tensor.numpy())


def shards(program: ModuleType, rank: int, arrays: Sequence[Array]) -> list[Any]:
    """Cuts a rank's tensors out of q, k, v, and of dout, out, lse, if they are there."""
    sided = zip(arrays, SIDES, strict=False)
    return [program.shard(to_torch(x), rank, side=side) for x, side in sided]


def attend(
    program: ModuleType, group: Any, arrays: Sequence[Array], sinks: Array | None = None
) -> Parts:
    """out of q, k, v, or with dout also dq, dk, dv and this rank's part of dsinks."""
    *qkv, dout = (*shards(program, group.rank(), arrays), None)[:4]
    inputs = [x.requires_grad_(dout is not None) for x in (*qkv, *_logits(sinks))]
    more = {"sinks": inputs[3]} if len(inputs) > 3 else {}
    out = program.attention(*inputs[:3], group=group, seq=arrays[0].shape[2], **more)
    if dout is None:
        return [to_numpy(out)]
    return [to_numpy(x) for x in (out, *torch.autograd.grad(out, inputs, dout))]


def ahead(
    program: ModuleType, group: Any, arrays: Sequence[Array], sinks: Array | None = None
) -> Parts:
    """out and lse [batch, heads, tokens, 1] of q, k, v."""
    inputs = *shards(program, group.rank(), arrays), *_logits(sinks)
    out, lse = program.forward(*inputs, group.group_name, "", "", -1)[:2]
    return [to_numpy(out), to_numpy(lse)]


def back(
    program: ModuleType, group: Any, arrays: Sequence[Array], sinks: Array | None = None
) -> Parts:
    """dq, dk, dv of q, k, v, dout, out, lse, with nothing kept from a forward pass; and dsinks."""
    q, k, v, dout, out, lse = shards(program, group.rank(), arrays)
    saved = [q, k, v, *_logits(sinks), out, lse]
    return [to_numpy(x) for x in program.backward(dout, saved, group.group_name)]


def _logits(sinks: Array | None) -> list[Any]:
    """Returns sinks as wide as partial sums, so that shares of their gradient are no less exact."""
    return [] if sinks is None else [to_torch(sinks.astype(wide(sinks.dtype.name)))]


BODIES: dict[str, Body] = {"attention": attend, "forward": ahead, "backward": back}
