"""Checks every call of `attention` on all ranks, then runs it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.stubs import forward, shapes

RANKS = 1
ANY_HEADS = APART = DYNAMIC = SINKS = True


# ---- The function to call.


def checked_attention(
    inputs: list[Any], group: dist.ProcessGroup | None, seq: int | None, tables: Any = None
) -> Tensor:
    """Check the arguments on all ranks, then run the forward pass."""
    if (group := group or dist.group.WORLD) is None or group.size() != RANKS:
        raise ValueError(f"this program needs {RANKS} ranks, not {group and group.size()}")
    q, k, v = inputs[:3]
    expected = shapes(q, tables if DYNAMIC else k, group.rank())
    if DYNAMIC:
        hint = ": pass shard(x, rank, tables), and for k and v shard(x, rank, tables, side='kv')"
    elif APART:
        hint = ": pass shard(x, rank), and for k and v shard(x, rank, side='kv')"
    else:
        hint = ": pass shard(x, rank)"
    problems = [
        f"{name} is {x.dtype} {[*x.shape]} on {x.device}, not {q.dtype} {[*shape]} on {q.device}, "
        "with a float dtype" + hint * (x.shape[2:3] != shape[2:3])
        for name, x, shape in zip(("q", "k", "v"), (q, k, v), expected, strict=True)
        if (x.shape, x.dtype, x.device) != (shape, q.dtype, q.device) or not x.is_floating_point()
    ]
    if DYNAMIC and seq not in (None, tables.seq):
        problems.append(f"seq is {seq}, but the tables are for {tables.seq} tokens")
    if ANY_HEADS and q.shape[1] % max(1, k.shape[1]):
        problems.append(f"{q.shape[1]} heads are not a multiple of {k.shape[1]} KV heads")
    if SINKS:
        sinks = inputs[3]
        if sinks is None or [*sinks.shape] != [q.shape[1]]:
            actual = sinks if sinks is None else [*sinks.shape]
            problems.append(f"sinks must have shape [heads], not {actual}")
        inputs = [q, k, v, q if sinks is None else sinks]
    if problems and any(x.is_meta for x in inputs):
        raise ValueError(problems[0])
    if any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise NotImplementedError("forward-mode AD is not supported")
    grads = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    settings, problem = f"gradients {'wanted' if grads else 'not wanted'}", (problems or [""])[0]
    length = -1 if seq is None or DYNAMIC else seq
    name = f"{tables.name} {group.group_name}" if DYNAMIC else group.group_name
    out: Tensor = forward(*[x.contiguous() for x in inputs], name, settings, problem, length)[0]
    return out
